"""Where output goes: one console for people, plain JSON for scripts. Neither passes on what a terminal would obey."""

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
    """The console on stdout. Rich honours NO_COLOR; into a pipe lines are as long as they need to be."""
    from rich.console import Console

    class SanitizingConsole(Console):
        """Whatever is drawn is text: no escape sequence gets through but those that Rich makes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            return (
                segment if segment.control else segment._replace(text=plain_text(segment.text))
                for segment in super().render(renderable, options)
            )

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SanitizingConsole(highlight=False, soft_wrap=False, width=160 if piped else None)


def print_note(text: str) -> None:
    """Say something on stderr, which is no part of the output."""
    print(plain_text(text), file=sys.stderr, flush=True)


def print_renderable(renderable: RenderableType) -> None:
    """Print for people."""
    out = console()
    with trim_padding(out):
        out.print(renderable)


@contextmanager
def trim_padding(out: Console) -> Iterator[None]:
    """What is printed inside goes into a pipe without the blanks that fill lines up to the console's width."""
    if out.file.isatty():
        yield
        return
    with out.capture() as drawn:
        yield
    out.file.write("".join(f"{_PADDING.sub(_without_blanks, line)}\n" for line in drawn.get().splitlines()))


_PADDING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # FORCE_COLOR has colours end behind the blanks


def _without_blanks(filling: re.Match[str]) -> str:
    return filling[0].replace(" ", "")


def print_json(rows: Sequence[Any]) -> None:
    """Print a list of objects; field names as in the YAML, quantities and times as Kubernetes writes them, values of
    environment variables that hold secrets hidden."""
    from muster.env_vars import redact_secrets

    values = [to_json_value(row) for row in rows]
    print(json.dumps([redact_secrets(row) if isinstance(row, dict) else row for row in values], indent=2))


def to_json_value(value: BaseModel | Any) -> Any:
    """An object of ours as JSON values; what is not set is left out."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, mode="json", exclude_none=True)
