"""Charts of memory as inline SVG: stacked areas over time (bytes by category, with a line for a total above them), and
the allocator's segments (a bar for each, with what lies in it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from muster.tracing.formatting import format_bytes, format_percent
from muster.tracing.memory.memory_text import category_name
from muster.tracing.memory.segments import SegmentMap
from muster.tracing.page.charts import GLYPH_PX, svg_element, tick_labels, tick_values

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
WIDTH: Final = 1040
_ROW_PX, _GAP_PX = 12, 3
_MIN_PX: Final = 0.3  # a narrower piece is not visible


@dataclass(frozen=True, slots=True)
class AreaLayer:
    """A layer with the CSS class `style`; one value in bytes for each point."""

    label: str
    style: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AreaPlot:
    """Values that stay constant from a point to the next: layers from the bottom, a `line` above, vertical `marks`.

    `x` are seconds or, with `x_unit`, counts; not decreasing. `hover` has a text for each point.
    """

    title: str
    x: tuple[float, ...]
    layers: tuple[AreaLayer, ...]
    line: tuple[int, ...]
    hover: tuple[str, ...]
    marks: tuple[tuple[float, str], ...] = ()
    x_unit: str = ""
    width: int = 1040
    height: int = 300


def stacked_area_chart(plot: AreaPlot) -> str:
    """The chart; empty without points."""
    if not plot.x:
        return ""
    top, right, bottom = 14, 16, 34
    highest = max(*plot.line, *map(sum, _columns(plot)), 1)
    factor, unit = next((factor, unit) for factor, unit in _UNITS if highest >= factor)
    y_ticks = tick_values(0, highest / factor, 5)
    y_names = [f"{name} {unit}" if name != "0" else name for name in tick_labels(y_ticks)]
    left = 12 + GLYPH_PX * max(map(len, y_names))
    wide, high = plot.width - left - right, plot.height - top - bottom
    x_lo, x_hi = plot.x[0], plot.x[-1] if plot.x[-1] > plot.x[0] else plot.x[0] + 1

    def x(value: float) -> float:
        return left + wide * (value - x_lo) / (x_hi - x_lo)

    def y(value: float) -> float:
        return top + high * (1 - value / (y_ticks[-1] * factor))

    out = []
    for tick, name in zip(y_ticks, y_names, strict=True):
        at = y(tick * factor)
        out.append(f'<line class="grid" x1="{left:.1f}" x2="{left + wide:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    inside = [tick for tick in tick_values(x_lo, x_hi, 8) if x_lo <= tick <= x_hi]
    for tick, name in zip(inside, tick_labels(inside, as_time=not plot.x_unit), strict=True):
        out.append(f'<text class="quiet" x="{x(tick):.1f}" y="{top + high + 16}" text-anchor="middle">{name}</text>')
    if plot.x_unit:
        middle = left + wide / 2
        unit_name = escape(plot.x_unit)
        out.append(
            f'<text class="quiet" x="{middle:.1f}" y="{plot.height - 4}" text-anchor="middle">{unit_name}</text>'
        )
    out += _areas(plot, x, y)
    for at, label in plot.marks:
        anchor, shift = ("end", -5) if x(at) > left + 0.8 * wide else ("start", 5)
        out.append(f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{top + high}"/>')
        out.append(
            f'<text class="halo" x="{x(at) + shift:.1f}" y="{top + 12}" text-anchor="{anchor}">{escape(label)}</text>'
        )
    edges = [*plot.x[1:], x_hi]
    for start, end, text in zip(plot.x, edges, plot.hover, strict=True):
        out.append(
            f'<rect class="hover" x="{x(start):.1f}" y="{top}" width="{max(x(end) - x(start), 0.5):.1f}"'
            f' height="{high}"><title>{escape(text)}</title></rect>'
        )
    return svg_element(plot.width, plot.height, plot.title, out)


def _columns(plot: AreaPlot) -> list[tuple[int, ...]]:
    return list(zip(*(layer.values for layer in plot.layers), strict=True)) or [(0,)]


def _areas(plot: AreaPlot, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    """The layers as closed paths, and the line above them."""
    out = []
    lower = [0] * len(plot.x)
    for layer in plot.layers:
        upper = [low + value for low, value in zip(lower, layer.values, strict=True)]
        there = _steps(plot.x, upper, x, y)
        back = _steps(plot.x, lower, x, y)[::-1]
        highest = format_bytes(max(layer.values))
        path = "M" + "L".join([*there, *back]) + "z"
        out.append(
            f'<path class="{layer.style}" d="{path}"><title>{escape(layer.label)}: up to {highest}</title></path>'
        )
        lower = upper
    out.append(f'<path class="curve total" d="M{"L".join(_steps(plot.x, plot.line, x, y))}"/>')
    return out


def _steps(
    at: Sequence[float], values: Sequence[int], x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    """Coordinates of a line that keeps each value until the next point; runs of equal values are one segment."""
    points = [f"{x(at[0]):.1f} {y(values[0]):.1f}"]
    for before, value, start in zip(values, values[1:], at[1:], strict=False):
        if value != before:
            points += [f"{x(start):.1f} {y(before):.1f}", f"{x(start):.1f} {y(value):.1f}"]
    return [*points, f"{x(at[-1]):.1f} {y(values[-1]):.1f}"]


def segment_chart(segments: Sequence[SegmentMap], title: str) -> str:
    """The segments, whose lengths are proportional to their sizes; what is not coloured is free. Empty without any."""
    if not segments:
        return ""
    notes = [f"{format_bytes(one.size_bytes)}, {format_percent(_used(one))} used" for one in segments]
    wide = WIDTH - 12 - GLYPH_PX * max(map(len, notes))
    longest = max(one.size_bytes for one in segments) or 1
    out = []
    for row, (segment, note) in enumerate(zip(segments, notes, strict=True)):
        top, length = row * (_ROW_PX + _GAP_PX), wide * segment.size_bytes / longest
        free = f"{note}; largest free piece {format_bytes(segment.largest_free_bytes)}"
        out.append(
            f'<rect class="track" x="0" y="{top}" width="{length:.1f}" height="{_ROW_PX}"><title>{escape(free)}</title>'
            "</rect>"
        )
        for piece in segment.pieces:
            at, part = wide * piece.offset_bytes / longest, wide * piece.bytes / longest
            if part >= _MIN_PX:
                text = f"{category_name(piece.category)}: {format_bytes(piece.bytes)}"
                out.append(
                    f'<rect class="m-{escape(piece.category)}" x="{at:.1f}" y="{top}" width="{part:.1f}"'
                    f' height="{_ROW_PX}"><title>{escape(text)}</title></rect>'
                )
        out.append(f'<text class="quiet" x="{length + 8:.1f}" y="{top + _ROW_PX - 1}">{escape(note)}</text>')
    return svg_element(WIDTH, len(segments) * (_ROW_PX + _GAP_PX), title, out)


def _used(segment: SegmentMap) -> float:
    return segment.in_use_bytes / segment.size_bytes if segment.size_bytes else 0.0
