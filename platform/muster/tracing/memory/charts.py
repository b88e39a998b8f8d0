"""Charts of memory as inline SVG: stacked areas over time (bytes by category, with a line for a total above them), and
the allocator's segments (a bar for each, with what lies in it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from muster.tracing.formatting import format_bytes, format_percent
from muster.tracing.memory.memory_text import category_name
from muster.tracing.memory.segments import SegmentMap
from muster.tracing.page.axes import GLYPH_PX, WIDE_PX, Area, svg_element, text, tick_labels, tick_values

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
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
    x_lo, x_hi = plot.x[0], plot.x[-1] if plot.x[-1] > plot.x[0] else plot.x[0] + 1
    area = Area(
        left=left,
        top=top,
        wide=plot.width - left - right,
        high=plot.height - top - bottom,
        x_range=(x_lo, x_hi),
        y_range=(0, y_ticks[-1] * factor),
    )
    inside = [tick for tick in tick_values(x_lo, x_hi, 8) if x_lo <= tick <= x_hi]
    out = area.y_axis([tick * factor for tick in y_ticks], y_names)
    out += area.x_axis(inside, tick_labels(inside, as_time=not plot.x_unit), title=plot.x_unit)
    out += _areas(plot, area)
    for at, label in plot.marks:
        late = area.x(at) > left + 0.8 * area.wide
        out.append(
            f'<line class="mark" x1="{area.x(at):.1f}" x2="{area.x(at):.1f}" y1="{area.top}" y2="{area.bottom}"/>'
        )
        out.append(
            text(label, area.x(at) + (-5 if late else 5), top + 12, anchor="end" if late else "start", style="halo")
        )
    edges = [*plot.x[1:], x_hi]
    for start, end, shown_text in zip(plot.x, edges, plot.hover, strict=True):
        out.append(
            f'<rect class="hover" x="{area.x(start):.1f}" y="{top}" width="{max(area.x(end) - area.x(start), 0.5):.1f}"'
            f' height="{area.high}"><title>{escape(shown_text)}</title></rect>'
        )
    return svg_element(plot.width, plot.height, plot.title, out)


def _columns(plot: AreaPlot) -> list[tuple[int, ...]]:
    return list(zip(*(layer.values for layer in plot.layers), strict=True)) or [(0,)]


def _areas(plot: AreaPlot, area: Area) -> list[str]:
    """The layers as closed paths, and the line above them."""
    out = []
    lower = [0] * len(plot.x)
    for layer in plot.layers:
        upper = [low + value for low, value in zip(lower, layer.values, strict=True)]
        there = _steps(plot.x, upper, area)
        back = _steps(plot.x, lower, area)[::-1]
        highest = format_bytes(max(layer.values))
        path = "M" + "L".join([*there, *back]) + "z"
        out.append(
            f'<path class="{layer.style}" d="{path}"><title>{escape(layer.label)}: up to {highest}</title></path>'
        )
        lower = upper
    out.append(f'<path class="curve total" d="M{"L".join(_steps(plot.x, plot.line, area))}"/>')
    return out


def _steps(at: Sequence[float], values: Sequence[int], area: Area) -> list[str]:
    """Coordinates of a line that keeps each value until the next point; runs of equal values are one segment."""
    points = [f"{area.x(at[0]):.1f} {area.y(values[0]):.1f}"]
    for before, value, start in zip(values, values[1:], at[1:], strict=False):
        if value != before:
            points += [f"{area.x(start):.1f} {area.y(before):.1f}", f"{area.x(start):.1f} {area.y(value):.1f}"]
    return [*points, f"{area.x(at[-1]):.1f} {area.y(values[-1]):.1f}"]


def segment_chart(segments: Sequence[SegmentMap], title: str) -> str:
    """The segments, whose lengths are proportional to their sizes; what is not coloured is free. Empty without any."""
    if not segments:
        return ""
    notes = [f"{format_bytes(one.size_bytes)}, {format_percent(_used(one))} used" for one in segments]
    wide = WIDE_PX - 12 - GLYPH_PX * max(map(len, notes))
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
                shown_text = f"{category_name(piece.category)}: {format_bytes(piece.bytes)}"
                out.append(
                    f'<rect class="m-{escape(piece.category)}" x="{at:.1f}" y="{top}" width="{part:.1f}"'
                    f' height="{_ROW_PX}"><title>{escape(shown_text)}</title></rect>'
                )
        out.append(text(note, length + 8, top + _ROW_PX - 1, anchor="start", style="quiet"))
    return svg_element(WIDE_PX, len(segments) * (_ROW_PX + _GAP_PX), title, out)


def _used(segment: SegmentMap) -> float:
    return segment.in_use_bytes / segment.size_bytes if segment.size_bytes else 0.0
