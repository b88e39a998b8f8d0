"""Where output goes: one console for people, plain JSON for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType


def console() -> Console:
    """The console on stdout. Rich honours NO_COLOR; into a pipe lines are as long as they need to be."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, soft_wrap=False, width=160 if piped else None)


def show(renderable: RenderableType) -> None:
    """Print for people; into a pipe without the blanks that fill a table's last column."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as drawn:
        out.print(renderable)
    out.file.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def print_json(rows: Sequence[Any]) -> None:
    """Print a list of objects; field names as in the YAML, quantities and times as Kubernetes writes them."""
    print(json.dumps([plain(row) for row in rows], indent=2))


def plain(value: BaseModel | Any) -> Any:
    """An object of ours as JSON values; what is not set is left out."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, mode="json", exclude_none=True)
