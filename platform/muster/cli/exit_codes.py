"""How a command ends: an exit code, and for an error one message on stderr instead of a traceback.

With --json the error is JSON, too. MUSTER_DEBUG=1 prints the traceback.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from muster.errors import ClusterError, InvalidSpec, InvalidTrace, MusterError, Refused
from muster.text import sanitize


class ExitCode(enum.IntEnum):
    """Exit codes of `muster`, as documented in docs/cli.md."""

    OK = 0
    JOB_FAILED = 1
    INVALID = 2
    REFUSED = 3
    UNREACHABLE = 4
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandExit(Exception):
    """Ends the command with this exit code; the message has been printed."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


def run_command(command: Callable[[], object], *, as_json: bool) -> int:
    """Call `command`, and turn its exceptions into a message on stderr and an exit code."""
    try:
        command()
        sys.stdout.flush()
        return ExitCode.OK
    except CommandExit as end:
        return end.code
    except MusterError as error:
        _print_traceback_if_debug()
        print_error(str(error), error.reason, error.field, as_json=as_json)
        return _exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, as in `muster jobs | head -1`
        discard_stdout()
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        _print_traceback_if_debug()
        print_error(_os_error_message(error), "FileError", as_json=as_json)
        return ExitCode.INVALID
    except Exception as error:
        _print_traceback_if_debug()
        message = f"this is a bug in Muster: {type(error).__name__}: {error}; MUSTER_DEBUG=1 shows where it happened"
        print_error(message, "Bug", as_json=as_json)
        return ExitCode.BUG


def print_error(message: str, reason: str, field: str = "", *, as_json: bool) -> None:
    """Write an error to stderr."""
    if as_json:
        text = json.dumps({"error": {"reason": reason, "message": message, "field": field}})
    else:
        red, normal = ("\x1b[31m", "\x1b[0m") if _supports_color(sys.stderr) else ("", "")
        code = f" ({reason})" if reason not in ("Error", "Invalid") else ""
        text = f"{red}error:{normal} {sanitize.sanitize(message)}{code}"
    with contextlib.suppress(OSError):  # stderr is closed; the exit code still shows the error
        print(text, file=sys.stderr, flush=True)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail on a closed pipe."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def usage_error(message: str, field: str = "") -> NoReturn:
    """End because an argument is wrong."""
    raise InvalidSpec(message, field=field, reason="Usage")


def _exit_code(error: MusterError) -> ExitCode:
    if isinstance(error, InvalidSpec | InvalidTrace):
        return ExitCode.INVALID
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    return ExitCode.UNREACHABLE if isinstance(error, ClusterError) else ExitCode.JOB_FAILED


def _os_error_message(error: OSError) -> str:
    message = error.strerror or str(error)
    return f"{error.filename}: {message}" if error.filename else message


def _supports_color(stream: object) -> bool:
    isatty = getattr(stream, "isatty", lambda: False)
    return bool(isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print_traceback_if_debug() -> None:
    if os.environ.get("MUSTER_DEBUG"):
        traceback.print_exc()
