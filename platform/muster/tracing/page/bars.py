"""Rows of bars over one axis, which the templates draw as elements of HTML: they fit any width, and their text stays
readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.tracing.page.axes import tick_labels, tick_values

MIN_VISIBLE_PCT = 0.15  # smaller parts of a bar have less than two pixels


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a row, from `left` on and `width` wide, in percent of the axis; `style` is its CSS class, `shown` the
    text in it where there is space."""

    style: str
    left: float
    width: float
    tooltip: str
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A frame around a part of a row, in percent of the axis: a link to what it shows, named `anchor` itself."""

    anchor: str
    left: float
    width: float
    label: str
    href: str

    @property
    def side(self) -> str:
        """Where its label has most space: `inside`, `before` or `after` it."""
        return max(self._space, key=lambda side: (self._space[side], side))

    @property
    def space_pct(self) -> float:
        """The space for the label there, in percent of the mark."""
        return 100 * self._space[self.side] / max(self.width, 0.01)

    @property
    def _space(self) -> dict[str, float]:
        return {"before": self.left, "inside": self.width, "after": 100 - self.left - self.width}


@dataclass(frozen=True, slots=True)
class BarLane:
    """One line of bars with a name (empty: none), or with `layers`: (style, SVG paths of 400 parts by opacity)."""

    name: str = ""
    bars: tuple[BarPart, ...] = ()
    layers: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = ()
    marks: tuple[Mark, ...] = ()
    width: float = 100.0
    thin: bool = False


@dataclass(frozen=True, slots=True)
class BarRow:
    """A label, its lanes, a note after the label, and a description for those who cannot see the bars."""

    label: str
    lanes: tuple[BarLane, ...]
    note: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Rows over one axis, whose ticks are (percent, name); `legend` has the CSS class and the name of each colour."""

    title: str
    rows: tuple[BarRow, ...]
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...] = ()
    hint: str = ""


def time_axis(longest_s: float) -> tuple[float, tuple[tuple[float, str], ...]]:
    """The length of an axis for times up to `longest_s` in seconds, and its ticks."""
    length = longest_s if longest_s > 0 else 1.0
    ticks = [tick for tick in tick_values(0, length, 5) if tick <= length]
    return length, tuple(
        (100 * tick / length, name) for tick, name in zip(ticks, tick_labels(ticks, as_time=True), strict=True)
    )


def stacked(parts: Sequence[tuple[str, float, str, str]], length: float) -> tuple[BarPart, ...]:
    """Bars after each other, of (style, value, tooltip, shown); `length` is the value at the end of the axis."""
    bars, left = [], 0.0
    for style, value, tooltip, shown in parts:
        width = 100 * value / length if length > 0 else 0.0
        if width >= MIN_VISIBLE_PCT:
            bars.append(BarPart(style, left, width, tooltip, shown))
        left += width
    return tuple(bars)


def level_paths(levels: str) -> tuple[tuple[int, str], ...]:
    """Runs of slots with the same level (a digit, 0: nothing), as one path per level of a lane that is 10 high."""
    paths: dict[int, list[str]] = {}
    at = 0
    while at < len(levels):
        end = at
        while end < len(levels) and levels[end] == levels[at]:
            end += 1
        if levels[at] != "0":
            paths.setdefault(int(levels[at]), []).append(f"M{at} 0h{end - at}v10h-{end - at}z")
        at = end
    return tuple((level, "".join(parts)) for level, parts in sorted(paths.items()))
