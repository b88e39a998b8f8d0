"""Lines of parts, each of which stays whole: a narrow terminal breaks them between two parts, never inside one."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text


def wrap_parts(parts: Iterable[Text | str], width: int, separator: str = " · ", prefix: str = "") -> list[Text]:
    """The parts one after the other, in lines of at most `width` columns that begin with `before`; a part that is
    longer than that has a line of its own."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + Text(separator).cell_len + Text.assemble(part).cell_len <= width:
            lines[-1].append(separator).append_text(Text.assemble(part))
        else:
            lines.append(Text.assemble(prefix, part))
    return lines
