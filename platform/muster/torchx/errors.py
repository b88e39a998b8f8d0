"""How bad input reaches a person through `torchx run`.

TorchX prints a ComponentValidationException as an error and ends with exit code 1; anything else ends in a traceback
whose last line only is meant for people. So whatever refuses a submission is turned into one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchx.specs.finder import ComponentValidationException

from muster.errors import ClusterError, MusterError


class SubmissionRefused(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """The app, its options or this cluster forbid the submission; the text names the field, the value and a remedy."""


class WatchInterrupted(ComponentValidationException, ClusterError):  # type: ignore[misc]  # TorchX is not typed
    """The cluster went away while a job was watched, which goes on or not as the text says."""


class TorchxCommandError(MusterError, SystemExit):
    """Ends a `torchx` command with the text alone on stderr and exit code 1."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text


@contextmanager
def print_errors_without_traceback() -> Iterator[None]:
    """What Muster refuses to the commands `torchx list`, `log` and their like, which catch nothing, ends them with a
    line instead of a traceback; whoever calls TorchX from Python gets the error itself."""
    try:
        yield
    except MusterError as error:
        if is_torchx_command():
            threading.excepthook = (
                _ignore_command_errors  # `torchx log` reads in threads, and raises what they did once more
            )
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
    """Turn what Muster refuses into what TorchX prints."""
    try:
        yield
    except MusterError as error:
        raise SubmissionRefused(str(error)) from error
