"""Layout of styled text in a terminal; apart from `muster.text`, which the operator uses without rich."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text


def wrap_parts(parts: Iterable[Text | str], width: int, separator: str = " · ", prefix: str = "") -> list[Text]:
    """Join the parts into lines of at most `width` columns, each beginning with `prefix`. No part is broken: a
    longer part gets its own line."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + Text(separator).cell_len + Text.assemble(part).cell_len <= width:
            lines[-1].append(separator).append_text(Text.assemble(part))
        else:
            lines.append(Text.assemble(prefix, part))
    return lines
