"""Output: a Rich console for people, JSON for scripts. Both drop terminal control sequences in data."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from muster.text.sanitize import sanitize as plain_text

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def console() -> Console:
    """The console on stdout. Rich honours NO_COLOR. The width of a pipe is 160 columns."""
    from rich.console import Console

    class SanitizingConsole(Console):
        """Removes all escape sequences but those that Rich itself makes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            return (
                segment if segment.control else segment._replace(text=plain_text(segment.text))
                for segment in super().render(renderable, options)
            )

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SanitizingConsole(highlight=False, soft_wrap=False, width=160 if piped else None)


def print_note(text: str) -> None:
    """Print a note or warning on stderr."""
    print(plain_text(text), file=sys.stderr, flush=True)


def print_renderable(renderable: RenderableType) -> None:
    """Print for people."""
    out = console()
    with trim_padding(out):
        out.print(renderable)


@contextmanager
def trim_padding(out: Console) -> Iterator[None]:
    """Within this context, strip the blanks at line ends that pad to the console's width, if stdout is a pipe."""
    if out.file.isatty():
        yield
        return
    with out.capture() as captured:
        yield
    out.file.write("".join(f"{_PADDING.sub(_without_blanks, line)}\n" for line in captured.get().splitlines()))


_PADDING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # with FORCE_COLOR, colour codes end after the blanks


def _without_blanks(padding: re.Match[str]) -> str:
    return padding[0].replace(" ", "")


def print_json(rows: Sequence[Any]) -> None:
    """Print a JSON list of objects with the field names of the YAML, and quantities and times in Kubernetes' form.
    Values of environment variables that hold secrets are redacted."""
    from muster.env_vars import redact_secrets

    values = [to_json_value(row) for row in rows]
    print(json.dumps([redact_secrets(row) if isinstance(row, dict) else row for row in values], indent=2))


def to_json_value(value: BaseModel | Any) -> Any:
    """A model as JSON values without unset fields; other values unchanged."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, mode="json", exclude_none=True)
