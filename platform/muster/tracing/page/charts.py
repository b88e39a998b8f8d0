"""Line charts as inline SVG, coloured by the page's style sheet. All text is escaped here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from muster.tracing.formatting import format_number, format_seconds
from muster.tracing.page.axes import (
    GLYPH_PX,
    Area,
    svg_element,
    text,
    tick_labels,
    tick_values,
    unit_at,
)

MAX_HOVER_COLUMNS = 100
AXIS_PADDING_PX = 6


@dataclass(frozen=True, slots=True)
class ChartSection:
    """A section of a page with one chart (SVG); `legend` has the CSS class and the name of each colour."""

    title: str
    chart: str
    legend: tuple[tuple[str, str], ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class LineSeries:
    """A line of a chart. `style` is its CSS class; points are (x, y) with increasing x."""

    label: str
    style: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A point above `LinePlot.y_limit`: a circle if within the axis, else a triangle at the top.

    Only the highest one shows its `label`.
    """

    x: float
    y: float
    style: str
    label: str


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Layout of a line chart: sizes in pixels; `shaded_range` is (x from, x to, label) of a shaded band.

    The x axis has step numbers, or seconds with `x_is_time`. `y_limit` cuts the y axis at the next round number,
    `outliers` are points above it. `y_is_time`: y is in seconds and labelled with time units; `y_suffix` follows the
    numbers of other axes. `show_value` formats y for tooltips.
    """

    title: str
    width: int = 520
    height: int = 240
    y_from_zero: bool = False
    y_is_time: bool = False
    y_suffix: str = ""
    x_is_time: bool = False
    show_value: Callable[[float], str] = format_number
    y_limit: float | None = None
    outliers: tuple[Outlier, ...] = ()
    shaded_range: tuple[float, float, str] | None = None


def line_chart(curves: Sequence[LineSeries], plot: LinePlot) -> str:
    """Curves over steps, with axes; empty without points."""
    points = [p for curve in curves for p in curve.points]
    if not points:
        return ""
    shown = [p[1] for p in points if plot.y_limit is None or p[1] <= plot.y_limit] or [p[1] for p in points]
    y_lo, y_hi = (0.0 if plot.y_from_zero else min(shown)), max(shown)
    y_ticks = tick_values(y_lo, y_hi if y_hi > y_lo else y_lo + unit_at(y_lo), 5)
    names = [f"{name}{plot.y_suffix}" for name in tick_labels(y_ticks, as_time=plot.y_is_time)]
    left = 12 + GLYPH_PX * max(map(len, names))
    area = Area(
        left=left,
        top=12,
        wide=plot.width - left - 16,
        high=plot.height - 46,
        x_range=(min(p[0] for p in points), max(p[0] for p in points)),
        y_range=(min(y_lo, y_ticks[0]), max(y_hi, y_ticks[-1])),
        padding=AXIS_PADDING_PX,
    )
    out = [*_shaded(plot, area), *area.y_axis(y_ticks, names), *_x_axis(plot, area)]
    out += [_series_path(curve, area) for curve in curves]
    out += _hover_columns(curves, plot, area)
    out += _outlier_marks(plot.outliers, area)
    return svg_element(plot.width, plot.height, plot.title, out)


def _shaded(plot: LinePlot, area: Area) -> list[str]:
    if plot.shaded_range is None:
        return []
    lo, hi, meaning = plot.shaded_range
    x1, x2 = area.x(max(lo, area.x_range[0])), area.x(min(hi, area.x_range[1]))
    if x2 <= x1:
        return []
    band = max(x2 - x1, 3.0)  # visible also for few steps among thousands
    fits = x1 + 4 + GLYPH_PX * len(meaning) < area.left + area.wide
    anchor, at = ("start", x1 + 4) if fits else ("end", x2 - 4)
    return [
        f'<rect class="shade" x="{x1:.1f}" y="{area.top}" width="{band:.1f}" height="{area.high}"/>',
        text(meaning, at, area.bottom - 6, anchor=anchor, style="quiet"),
    ]


def _x_axis(plot: LinePlot, area: Area) -> list[str]:
    lo, hi = area.x_range
    inside = [tick for tick in tick_values(lo, hi, 6, integer=not plot.x_is_time) if lo <= tick <= hi]
    # Label the first step, unless another label is near.
    if inside and not plot.x_is_time and area.x(inside[0]) - area.x(lo) > 5 * GLYPH_PX:
        inside = [lo, *inside]
    names = tick_labels(inside, as_time=True) if plot.x_is_time else [f"{tick:,.0f}" for tick in inside]
    return area.x_axis(inside, names, title="time" if plot.x_is_time else "step")


def _series_path(curve: LineSeries, area: Area) -> str:
    title = f"<title>{escape(curve.label)}</title>"
    if len(curve.points) == 1:
        px, py = curve.points[0]
        return f'<circle class="dot {curve.style}" cx="{area.x(px):.1f}" cy="{area.y(py):.1f}" r="3">{title}</circle>'
    path = "M" + "L".join(f"{area.x(px):.1f} {area.y(py):.1f}" for px, py in curve.points)
    return f'<path class="curve {curve.style}" d="{path}">{title}</path>'


def _hover_columns(curves: Sequence[LineSeries], plot: LinePlot, area: Area) -> list[str]:
    """Invisible columns over the chart, whose tooltips have the values of all curves at the step in their middle."""
    steps = sorted({p[0] for curve in curves for p in curve.points})
    shown = [steps[i * len(steps) // MAX_HOVER_COLUMNS] for i in range(MAX_HOVER_COLUMNS)]
    shown = steps if len(steps) <= MAX_HOVER_COLUMNS else shown
    edges = [(area.x(a) + area.x(b)) / 2 for a, b in pairwise(shown)]
    edges = [area.x(shown[0]) - AXIS_PADDING_PX, *edges, area.x(shown[-1]) + AXIS_PADDING_PX]
    out = []
    for step, (lo, hi) in zip(shown, pairwise(edges), strict=True):
        values = []
        for curve in curves:
            at = bisect_left(curve.points, step, key=lambda point: point[0])
            near = curve.points[max(at - 1, 0) : at + 1]
            if near:
                value = min(near, key=lambda point: abs(point[0] - step))[1]
                values.append(f"{curve.label}: {plot.show_value(value)}")
        name = format_seconds(step) if plot.x_is_time else f"step {step:,.0f}"
        shown_text = escape("\n".join([name, *values]))
        place = f'x="{lo:.1f}" y="{area.top}" width="{hi - lo:.1f}" height="{area.high}"'
        out.append(f'<rect class="hover" {place}><title>{shown_text}</title></rect>')
    return out


def _outlier_marks(points: Sequence[Outlier], area: Area) -> list[str]:
    """Marks of outliers; those within the axis are drawn at their value, which a downsampled curve may not contain."""
    out = []
    for p in points:
        title = f"<title>{escape(p.label)}</title>"
        if p.y <= area.y_range[1]:
            at = f'cx="{area.x(p.x):.1f}" cy="{area.y(p.y):.1f}"'
            out.append(f'<circle class="dot {p.style}" {at} r="2.5">{title}</circle>')
        else:
            triangle = f"M{area.x(p.x) - 4:.1f} {area.y(p.y) + 3:.1f}h8l-4 -7z"
            out.append(f'<path class="dot {p.style}" d="{triangle}">{title}</path>')
    if points:
        highest = max(points, key=lambda p: (p.y, p.x, p.label))
        before = area.x(highest.x) + 8 + GLYPH_PX * len(highest.label) > area.left + area.wide
        anchor, beside = ("end", area.x(highest.x) - 8) if before else ("start", area.x(highest.x) + 8)
        out.append(text(highest.label, beside, area.y(highest.y) + 4, anchor=anchor, style="quiet halo"))
    return out
