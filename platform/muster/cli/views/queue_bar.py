"""The bar of one queue: what of its guarantee is used, what is borrowed, what idles, how far it may still grow.

All bars of a tree are drawn to one scale, so that a child's length is its part of the whole. The four kinds of cells
differ in shape as well as in colour: the bar reads the same on paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from muster.wrapping import in_lines

OWN, BORROWED, IDLE, REACH = "█", "▓", "░", "·"
LEAST = 4  # cells
STYLES = {OWN: "green", BORROWED: "yellow", IDLE: "green dim", REACH: "bright_black"}


@dataclass(frozen=True, slots=True)
class Level:
    """One resource of one flavor in one queue, in the units of `muster.model`; `limit` None: unlimited."""

    used: int
    guaranteed: int
    limit: int | None
    named: bool = True  # whether the queue, or one above it, says anything about it


def queue_bar(level: Level, whole: int, width: int) -> Text:
    """`width` cells for `whole`; what is not nothing gets one cell at least."""
    own = min(level.used, level.guaranteed)
    reach = whole if level.limit is None else min(level.limit, whole)
    ends = (
        (OWN, own),
        (BORROWED, level.used) if level.used > level.guaranteed else (IDLE, level.guaranteed),
        (REACH, reach),
    )
    text, start, drawn = Text(no_wrap=True), 0, 0
    for cell, end in ends:
        if end <= start:
            continue
        cells = max(1, round(end / whole * width) - drawn) if whole else 0
        cells = min(cells, width - drawn)
        text.append(cell * cells, style=STYLES[cell])
        start, drawn = end, drawn + cells
    return text.append(" " * (width - drawn))


@dataclass(frozen=True, slots=True)
class QueueBar:
    """A bar in a column that gives way where the terminal is narrow: from `LEAST` up to `width` cells."""

    level: Level
    whole: int
    width: int

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """For the table that it stands in."""
        return Measurement(min(LEAST, self.width), self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar in the width that is left for it."""
        yield queue_bar(self.level, self.whole, min(self.width, options.max_width))


def legend(width: int, *, of_bars: bool) -> list[Text]:
    """What the cells mean, as far as there are bars, and the marks of jobs; in lines of at most `width` columns."""
    words = ((OWN, "used"), (BORROWED, "borrowed"), (IDLE, "own, idle"), (REACH, "may borrow")) if of_bars else ()
    jobs = (("●", "green", "running"), ("○", "yellow", "waiting"))
    parts = [Text.assemble((cell * 2, STYLES[cell]), " ", (word, "dim")) for cell, word in words]
    parts += [Text.assemble((mark, style), " ", (word, "dim")) for mark, style, word in jobs]
    return in_lines(parts, width, between="  ")
