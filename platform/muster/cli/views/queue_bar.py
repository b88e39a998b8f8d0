"""The bar of one queue: used and idle guarantee, borrowed usage, and how much more it can borrow.

All bars of a tree have the same scale. The four kinds of cells differ in shape as well as in colour, so that the bar is
readable without colours.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from muster.text.wrap import wrap_parts

OWN_CELL, BORROWED_CELL, IDLE_CELL, BORROWABLE_CELL = "█", "▓", "░", "·"
MIN_CELLS = 4  # cells
CELL_STYLES = {OWN_CELL: "green", BORROWED_CELL: "yellow", IDLE_CELL: "green dim", BORROWABLE_CELL: "bright_black"}


@dataclass(frozen=True, slots=True)
class BarUsage:
    """One resource of one flavor in one queue, in the units of `muster.model`; `limit` None: unlimited."""

    used: int
    guaranteed: int
    limit: int | None
    has_quota: bool = True  # whether the queue or an ancestor sets a quota for it


def queue_bar(usage: BarUsage, total: int, width: int) -> Text:
    """`width` cells for `total`; a part above zero gets at least one cell."""
    own = min(usage.used, usage.guaranteed)
    reach = total if usage.limit is None else min(usage.limit, total)
    ends = (
        (OWN_CELL, own),
        (BORROWED_CELL, usage.used) if usage.used > usage.guaranteed else (IDLE_CELL, usage.guaranteed),
        (BORROWABLE_CELL, reach),
    )
    text, start, drawn = Text(no_wrap=True), 0, 0
    for cell, end in ends:
        if end <= start:
            continue
        cells = max(1, round(end / total * width) - drawn) if total else 0
        cells = min(cells, width - drawn)
        text.append(cell * cells, style=CELL_STYLES[cell])
        start, drawn = end, drawn + cells
    return text.append(" " * (width - drawn))


@dataclass(frozen=True, slots=True)
class QueueBar:
    """A bar in a table column that shrinks in a narrow terminal: `MIN_CELLS` to `width` cells."""

    usage: BarUsage
    total: int
    width: int

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The range of widths, for the table's layout."""
        return Measurement(min(MIN_CELLS, self.width), self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar in the width of its column."""
        yield queue_bar(self.usage, self.total, min(self.width, options.max_width))


def legend(width: int, *, with_bars: bool) -> list[Text]:
    """The legend of the cells (if there are bars) and of the job symbols, in lines of at most `width` columns."""
    words = (
        ((OWN_CELL, "used"), (BORROWED_CELL, "borrowed"), (IDLE_CELL, "own, idle"), (BORROWABLE_CELL, "may borrow"))
        if with_bars
        else ()
    )
    jobs = (("●", "green", "running"), ("○", "yellow", "waiting"))
    parts = [Text.assemble((cell * 2, CELL_STYLES[cell]), " ", (word, "dim")) for cell, word in words]
    parts += [Text.assemble((mark, style), " ", (word, "dim")) for mark, style, word in jobs]
    return wrap_parts(parts, width, separator="  ")
