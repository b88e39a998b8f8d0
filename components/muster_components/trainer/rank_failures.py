"""An error that some ranks have and others have not ends all ranks with the same exit code.

A rank that ended on its own would leave the others waiting in a collective. They would end later with exit code 1, as
after a failure of the network, so that the job would be restarted although a retry fails again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_FAILED, InputError, TrainerError, UserCodeError

T = TypeVar("T")


class RankFailedError(TrainerError):
    """The error of one rank, raised by all ranks."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def on_all_ranks(action: Callable[[], T]) -> T:
    """What `action` returns on this rank. If it fails on any, all raise as `raise_on_all_ranks` does. Every rank calls
    this."""
    try:
        result = action()
    except Exception as error:
        raise_on_all_ranks(error)
        raise
    raise_on_all_ranks(None)
    return result


def raise_on_all_ranks(error: Exception | None) -> None:
    """If any rank has an error, raise that of the lowest such rank on all: InputError for invalid input, else
    RankFailedError.

    Every rank calls this, with its own error or None. The traceback of an error that is not the trainer's is printed.
    """
    failures: list[tuple[str, int] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, None if error is None else _describe(error))
    if error is not None:
        cause = error.__cause__ if isinstance(error, UserCodeError) else error
        if not isinstance(cause, TrainerError):
            traceback.print_exception(cause)
    if first := next((failure for failure in failures if failure is not None), None):
        message, exit_code = first
        if exit_code == EXIT_BAD_INPUT:
            raise InputError(message)
        raise RankFailedError(message, exit_code)


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, TrainerError):
        return str(error), error.exit_code
    return f"rank {dist.get_rank()}: {type(error).__name__}: {error}", EXIT_FAILED
