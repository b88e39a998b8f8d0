"""The bar of one queue: what of its guarantee is used, what is borrowed, what idles, how far it may still grow.

All bars of a tree are drawn to one scale, so that a child's length is its part of the whole. The four kinds of cells
differ in shape as well as in colour: the bar reads the same on paper.
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
    has_quota: bool = True  # whether the queue, or one above it, says anything about it


def queue_bar(usage: BarUsage, total: int, width: int) -> Text:
    """`width` cells for `whole`; what is not nothing gets one cell at least."""
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
    """A bar in a column that gives way where the terminal is narrow: from `LEAST` up to `width` cells."""

    usage: BarUsage
    total: int
    width: int

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """For the table that it stands in."""
        return Measurement(min(MIN_CELLS, self.width), self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar in the width that is left for it."""
        yield queue_bar(self.usage, self.total, min(self.width, options.max_width))


def legend(width: int, *, with_bars: bool) -> list[Text]:
    """What the cells mean, as far as there are bars, and the marks of jobs; in lines of at most `width` columns."""
    words = (
        ((OWN_CELL, "used"), (BORROWED_CELL, "borrowed"), (IDLE_CELL, "own, idle"), (BORROWABLE_CELL, "may borrow"))
        if with_bars
        else ()
    )
    jobs = (("●", "green", "running"), ("○", "yellow", "waiting"))
    parts = [Text.assemble((cell * 2, CELL_STYLES[cell]), " ", (word, "dim")) for cell, word in words]
    parts += [Text.assemble((mark, style), " ", (word, "dim")) for mark, style, word in jobs]
    return wrap_parts(parts, width, separator="  ")
