"""What a command prints and how it ends: tables for people, JSON for scripts, errors on stderr, an exit code.

All output drops terminal control sequences in data. MUSTER_DEBUG=1 prints the traceback of an error.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from muster.errors import ClusterError, InvalidSpec, InvalidTrace, MusterError, Refused
from muster.text import sanitize

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from muster.client import ClusterClient

_PADDING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # with FORCE_COLOR, colour codes end after the blanks


class ExitCode(enum.IntEnum):
    """Exit codes of `muster`, as documented in docs/reference/cli.md."""

    OK = 0
    JOB_FAILED = 1
    INVALID = 2
    REFUSED = 3
    UNREACHABLE = 4
    REGRESSION = 5
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
        text = f"{red}error:{normal} {sanitize(message)}{code}"
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


def console() -> Console:
    """The console on stdout. Rich honours NO_COLOR. The width of a pipe is 160 columns."""
    from rich.console import Console

    class SanitizingConsole(Console):
        """Removes all escape sequences but those that Rich itself makes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            return (
                segment if segment.control else segment._replace(text=sanitize(segment.text))
                for segment in super().render(renderable, options)
            )

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SanitizingConsole(highlight=False, soft_wrap=False, width=160 if piped else None)


def print_note(text: str) -> None:
    """Print a note or warning on stderr."""
    print(sanitize(text), file=sys.stderr, flush=True)


def print_notices(client: ClusterClient) -> None:
    """Print what a client could not find out."""
    for notice in client.notices():
        print_note(f"note: {notice}")


def print_text(text: str) -> None:
    """Print a line with text of other programs."""
    print(sanitize(text))


def print_renderable(renderable: RenderableType) -> None:
    """Print for people."""
    out = console()
    with trim_padding(out):
        out.print(renderable)


@contextlib.contextmanager
def trim_padding(out: Console) -> Iterator[None]:
    """Within this context, strip the blanks at line ends that pad to the console's width, if stdout is a pipe."""
    if out.file.isatty():
        yield
        return
    with out.capture() as captured:
        yield
    out.file.write("".join(f"{_PADDING.sub(_without_blanks, line)}\n" for line in captured.get().splitlines()))


def _without_blanks(padding: re.Match[str]) -> str:
    return padding[0].replace(" ", "")


def print_json(rows: Sequence[Any]) -> None:
    """Print a JSON list of objects with the field names of the YAML, and quantities and times in Kubernetes' form.
    Values of environment variables that hold secrets are redacted."""
    from muster.api.env_vars import redact_secrets

    values = [to_json_value(row) for row in rows]
    print(json.dumps([redact_secrets(row) if isinstance(row, dict) else row for row in values], indent=2))


def to_json_value(value: BaseModel | Any) -> Any:
    """A model as JSON values without unset fields; other values unchanged."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, mode="json", exclude_none=True)
