"""The errors that end the trainer, and its exit codes, which failure rules use."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""An unexpected error; its traceback is in the log."""
EXIT_BAD_INPUT: Final = 2
"""Invalid flags or data, or a checkpoint of another run; see the log. A retry fails again."""
EXIT_DIVERGED: Final = 3
"""Loss or gradients are not finite. The order of samples is fixed, so a retry fails again, unless a device computed
wrongly."""
EXIT_IMPORT: Final = 78
"""EX_CONFIG: torch cannot be imported. A retry fails again, since all pods of a job have the same environment."""
EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT: Ctrl-C; a checkpoint was written."""
EXIT_STOPPED: Final = 143
"""128 + SIGTERM: stopped after writing a checkpoint, as at preemption; not a failure."""


def install_extra(extra: str) -> str:
    """How a user installs an optional dependency of Muster, for the end of a message."""
    return f"install the extra {extra} of Muster: pip install '/path/to/muster[{extra}]'"


class TrainerError(Exception):
    """Ends the run with `exit_code`; the message is meant for the user.

    `same_on_all_ranks`: all ranks fail with the same message, so only rank 0 prints it.
    """

    exit_code: int = EXIT_FAILED

    def __init__(self, message: str, *, same_on_all_ranks: bool = True) -> None:
        super().__init__(message)
        self.same_on_all_ranks = same_on_all_ranks


class InputError(TrainerError):
    """Invalid input of the user; the message names the field, its value and valid values."""

    exit_code = EXIT_BAD_INPUT


class UserCodeError(InputError):
    """An error of the user's code that a retry would repeat; `__cause__` is that error."""


class MissingTorchError(TrainerError):
    """torch, or a module that the trainer needs beside it, cannot be imported; the message names it."""

    exit_code = EXIT_IMPORT


class DivergedError(TrainerError):
    """Loss or gradient norm is not finite; the message names the step."""

    exit_code = EXIT_DIVERGED
