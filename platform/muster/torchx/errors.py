"""Errors that TorchX commands print without a traceback.

TorchX prints a ComponentValidationException as an error and ends with exit code 1; other exceptions end in a traceback.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from torchx.specs import InvalidRunConfigException
from torchx.specs.finder import ComponentValidationException

from muster.errors import ClusterError, MusterError

_ROLE: Final = r"spec\.roles\[\d+\]\."
_OPTIONS: Final = (
    (r"metadata\.name", "--name"),
    (r"metadata\.namespace", "-cfg namespace"),
    (r"spec\.queue", "--queue or -cfg queue"),
    (r"spec\.priority", "--priority or -cfg priority"),
    (r"spec\.maxRuntimeSeconds", "--max_runtime or -cfg max_runtime"),
    (r"spec\.startTimeoutSeconds", "-cfg start_timeout"),
    (r"spec\.stallTimeoutSeconds", "-cfg stall_timeout"),
    (r"spec\.firstStepTimeoutSeconds", "-cfg first_step_timeout"),
    (rf"spec\.flavors(\[\d+\])?|{_ROLE}flavors(\[\d+\])?", "-cfg flavors"),
    (rf"spec\.topology[.\w]*|{_ROLE}topology[.\w]*", "-cfg topology"),
    (rf"{_ROLE}replicas", "number of replicas (-j)"),
    (rf"{_ROLE}minReplicas", "-cfg min_replicas"),
    (rf"{_ROLE}template\.spec\.containers\[0\]\.args\[\d+\]", "arguments"),
    (rf"{_ROLE}template\.spec\.containers\[0\]\.env\[\d+\](\.\w+)?", "--env"),
    (rf"{_ROLE}template\.spec\.containers\[0\]\.image", "--image"),
)
"""Fields of a TrainingJob, and what sets them in a `torchx run`."""
_OPTION_OF_FIELD: Final = tuple((re.compile(rf"(^|; also: )({field}): "), option) for field, option in _OPTIONS)


class SubmissionRefused(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """The submission is refused; the message names the field, the value and what is valid."""


class UnknownOption(SubmissionRefused, InvalidRunConfigException):  # type: ignore[misc]  # TorchX is not typed
    """An option of `-cfg` that the scheduler does not have. Of an InvalidRunConfigException alone, TorchX prints the
    option without the reason, and it has the option and all options as further arguments."""

    def __str__(self) -> str:
        return str(self.args[0])


class WatchInterrupted(ComponentValidationException, ClusterError):  # type: ignore[misc]  # TorchX is not typed
    """The cluster became unreachable while a job was watched."""


class TorchxCommandError(MusterError, SystemExit):
    """Ends a `torchx` command with only the message on stderr and exit code 1."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text


@contextmanager
def print_errors_without_traceback() -> Iterator[None]:
    """In commands such as `torchx list` and `torchx log`, turn Muster's errors into a message without a traceback. In
    programs that use TorchX, raise the error itself."""
    try:
        yield
    except MusterError as error:
        if is_torchx_command():
            threading.excepthook = _ignore_command_errors  # `torchx log` reads in threads and raises their errors again
            raise TorchxCommandError(str(error)) from None
        raise


def _ignore_command_errors(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, TorchxCommandError):
        threading.__excepthook__(args)


def is_torchx_command() -> bool:
    """Whether this process is a command of TorchX's, not a program that uses TorchX."""
    main = sys.modules["__main__"]
    return Path(sys.argv[0]).name == "torchx" or getattr(main.__spec__, "name", "") == "torchx.cli.main"


@contextmanager
def as_submission_refused() -> Iterator[None]:
    """Raise Muster's errors as SubmissionRefused, with options of `torchx run` instead of fields of the job."""
    try:
        yield
    except MusterError as error:
        raise SubmissionRefused(with_options(str(error))) from error


def with_options(message: str) -> str:
    """`spec.queue: must ...` as `-cfg queue: must ...`; fields without an option are unchanged."""
    for field, option in _OPTION_OF_FIELD:
        message = field.sub(rf"\1{option}: ", message)
    return message
