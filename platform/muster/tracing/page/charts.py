"""Charts as inline SVG, coloured by the page's style sheet. All text is escaped here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from muster.tracing.formatting import format_number, format_percent, format_seconds, shorten_middle

_Scale = Callable[[float], float]
_WIDE_PX = 1040
GLYPH_PX = 7.3  # average character width of 12 px DejaVu Sans, the widest of the page's fonts
MAX_HOVER_COLUMNS = 100
AXIS_PADDING_PX = 6  # between the axis and the first point, so that points do not touch the labels


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


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of a bar, `fraction` from 0 to 1, with the CSS class `style`."""

    style: str
    fraction: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class StackedBar:
    """One labelled bar of stacked segments; `note` is shown after it."""

    label: str
    segments: tuple[BarSegment, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """One row of a timeline: a name, and layers (style, digits 0..4 per slot) drawn over each other."""

    name: str
    layers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TimelineTrack:
    """The lanes of one rank, `duration_s` wide; `note` is shown after the label."""

    label: str
    duration_s: float
    lanes: tuple[TimelineLane, ...]
    note: str = ""


def line_chart(curves: Sequence[LineSeries], plot: LinePlot) -> str:
    """Curves over steps, with axes; empty without points."""
    points = [p for curve in curves for p in curve.points]
    if not points:
        return ""
    x_lo, x_hi = min(p[0] for p in points), max(p[0] for p in points)
    shown = [p[1] for p in points if plot.y_limit is None or p[1] <= plot.y_limit] or [p[1] for p in points]
    y_lo, y_hi = (0.0 if plot.y_from_zero else min(shown)), max(shown)
    y_ticks = tick_values(y_lo, y_hi if y_hi > y_lo else y_lo + _unit_at(y_lo), 5)
    y_lo, y_hi = min(y_lo, y_ticks[0]), max(y_hi, y_ticks[-1])
    names = [f"{name}{plot.y_suffix}" for name in tick_labels(y_ticks, as_time=plot.y_is_time)]
    left, right, top, bottom = 12 + GLYPH_PX * max(map(len, names)), 16, 12, 34
    wide, high = plot.width - left - right, plot.height - top - bottom

    def x(value: float) -> float:
        return (
            left
            + AXIS_PADDING_PX
            + (wide - 2 * AXIS_PADDING_PX) * ((value - x_lo) / (x_hi - x_lo) if x_hi > x_lo else 0.5)
        )

    def y(value: float) -> float:
        return top + high * (1 - (min(value, y_hi) - y_lo) / (y_hi - y_lo))

    out = []
    if plot.shaded_range is not None:
        lo, hi, meaning = plot.shaded_range
        x1, x2 = x(max(lo, x_lo)), x(min(hi, x_hi))
        if x2 > x1:
            band = max(x2 - x1, 3.0)  # visible also for few steps among thousands
            out.append(f'<rect class="shade" x="{x1:.1f}" y="{top}" width="{band:.1f}" height="{high}"/>')
            anchor, at = ("start", x1 + 4) if x1 + 4 + GLYPH_PX * len(meaning) < left + wide else ("end", x2 - 4)
            out.append(
                f'<text class="quiet" x="{at:.1f}" y="{top + high - 6}" text-anchor="{anchor}">{escape(meaning)}</text>'
            )
    for tick, name in zip(y_ticks, names, strict=True):
        at = y(tick)
        out.append(f'<line class="grid" x1="{left:.1f}" x2="{left + wide:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    inside = [tick for tick in tick_values(x_lo, x_hi, 6, integer=not plot.x_is_time) if x_lo <= tick <= x_hi]
    if (
        inside and not plot.x_is_time and x(inside[0]) - x(x_lo) > 5 * GLYPH_PX
    ):  # label the first step, unless another label is near
        inside = [x_lo, *inside]
    x_names = tick_labels(inside, as_time=True) if plot.x_is_time else [f"{tick:,.0f}" for tick in inside]
    for tick, name in zip(inside, x_names, strict=True):
        out.append(f'<text x="{x(tick):.1f}" y="{top + high + 16}" text-anchor="middle">{name}</text>')
    axis = "time" if plot.x_is_time else "step"
    out.append(
        f'<text class="quiet" x="{left + wide / 2:.1f}" y="{plot.height - 4}" text-anchor="middle">{axis}</text>'
    )
    for curve in curves:
        out.append(_series_path(curve, x, y))
    out += _hover_columns(curves, plot, x, top, high)
    out += _outlier_marks(plot.outliers, y_hi, x, y, left + wide)
    return svg_element(plot.width, plot.height, plot.title, out)


def _series_path(curve: LineSeries, x: _Scale, y: _Scale) -> str:
    title = f"<title>{escape(curve.label)}</title>"
    if len(curve.points) == 1:
        px, py = curve.points[0]
        return f'<circle class="dot {curve.style}" cx="{x(px):.1f}" cy="{y(py):.1f}" r="3">{title}</circle>'
    path = "M" + "L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in curve.points)
    return f'<path class="curve {curve.style}" d="{path}">{title}</path>'


def _hover_columns(curves: Sequence[LineSeries], plot: LinePlot, x: _Scale, top: float, high: float) -> list[str]:
    """Invisible columns over the chart, whose tooltips have the values of all curves at the step in their middle."""
    steps = sorted({p[0] for curve in curves for p in curve.points})
    shown = [steps[i * len(steps) // MAX_HOVER_COLUMNS] for i in range(MAX_HOVER_COLUMNS)]
    shown = steps if len(steps) <= MAX_HOVER_COLUMNS else shown
    edges = [(x(a) + x(b)) / 2 for a, b in pairwise(shown)]
    edges = [x(shown[0]) - AXIS_PADDING_PX, *edges, x(shown[-1]) + AXIS_PADDING_PX]
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
        text = escape("\n".join([name, *values]))
        place = f'x="{lo:.1f}" y="{top}" width="{hi - lo:.1f}" height="{high}"'
        out.append(f'<rect class="hover" {place}><title>{text}</title></rect>')
    return out


def _outlier_marks(points: Sequence[Outlier], y_hi: float, x: _Scale, y: _Scale, edge: float) -> list[str]:
    """Marks of outliers; those up to `y_hi` are drawn at their value, which a downsampled curve may not contain."""
    out = []
    for p in points:
        title = f"<title>{escape(p.label)}</title>"
        if p.y <= y_hi:
            out.append(f'<circle class="dot {p.style}" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="2.5">{title}</circle>')
        else:
            triangle = f"M{x(p.x) - 4:.1f} {y(p.y) + 3:.1f}h8l-4 -7z"
            out.append(f'<path class="dot {p.style}" d="{triangle}">{title}</path>')
    if points:
        highest = max(points, key=lambda p: (p.y, p.x, p.label))
        before = x(highest.x) + 8 + GLYPH_PX * len(highest.label) > edge
        anchor, at = ("end", x(highest.x) - 8) if before else ("start", x(highest.x) + 8)
        name = escape(highest.label)
        out.append(
            f'<text class="quiet halo" x="{at:.1f}" y="{y(highest.y) + 4:.1f}" text-anchor="{anchor}">{name}</text>'
        )
    return out


def stacked_bar_chart(bars: Sequence[StackedBar], title: str) -> str:
    """Horizontal bars from 0 to 100%; wide segments show their percentage."""
    if not bars:
        return ""
    high, gap = (22, 8) if len(bars) <= 24 else (14, 4)
    left = min(20 + GLYPH_PX * max(len(bar.label) for bar in bars), 320)
    right = 12 + GLYPH_PX * max(len(bar.note) for bar in bars)
    wide = _WIDE_PX - left - right
    out = []
    for row, bar in enumerate(bars):
        top = row * (high + gap)
        out.append(row_label(bar.label, left - 10, top + high / 2 + 4, left - 12))
        at = left
        for segment in bar.segments:
            part = wide * segment.fraction
            if part > 0:
                out.append(
                    f'<rect class="{segment.style}" x="{at:.1f}" y="{top}" width="{part:.2f}" height="{high}">'
                    f"<title>{escape(bar.label)}: {escape(segment.tooltip)}</title></rect>"
                )
            if part > 46 and high > 16:
                out.append(
                    f'<text class="on-{segment.style}" x="{at + part / 2:.1f}" y="{top + high / 2 + 4}" '
                    f'text-anchor="middle">{format_percent(segment.fraction)}</text>'
                )
            at += part
        out.append(f'<text class="quiet" x="{left + wide + 8:.1f}" y="{top + high / 2 + 4}">{escape(bar.note)}</text>')
    bottom = len(bars) * (high + gap)
    for part_of in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = left + wide * part_of
        out.append(f'<text class="quiet" x="{at:.1f}" y="{bottom + 12}" text-anchor="middle">{part_of:.0%}</text>')
    return svg_element(_WIDE_PX, bottom + 18, title, out)


def timeline_chart(tracks: Sequence[TimelineTrack], title: str) -> str:
    """Lanes of every rank over the time since the start of its step; the opacity shows the utilisation of a slot."""
    if not tracks:
        return ""
    high, gap, heading, between = 15, 3, 18, 12
    left = 12 + GLYPH_PX * max(len(lane.name) for t in tracks for lane in t.lanes)
    wide = _WIDE_PX - left - 24
    longest = max(t.duration_s for t in tracks)
    out, top = [], 0.0
    for track in tracks:
        label, note = escape(track.label), escape(track.note)
        out.append(
            f'<text x="{left:.1f}" y="{top + 12:.1f}"><tspan class="strong">{label}</tspan>'
            f'<tspan class="quiet" dx="10">{note}</tspan></text>'
        )
        top += heading
        for lane in track.lanes:
            here, name = wide * track.duration_s / longest, escape(lane.name)
            out.append(f'<rect class="track" x="{left:.1f}" y="{top:.1f}" width="{here:.1f}" height="{high}"/>')
            out.append(f'<text class="quiet" x="{left - 8:.1f}" y="{top + 12:.1f}" text-anchor="end">{name}</text>')
            for style, levels in lane.layers:
                out.append(_level_paths(style, levels, left, top, here, high))
            top += high + gap
        top += between
    bottom = top - between
    marks = [tick for tick in tick_values(0, longest, 8) if tick <= longest]
    for tick, name in zip(marks, tick_labels(marks, as_time=True), strict=True):
        at = left + wide * tick / longest
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"/>')
        out.append(f'<text class="quiet" x="{at:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{name}</text>')
    return svg_element(_WIDE_PX, bottom + 22, title, out)


def _level_paths(style: str, levels: str, left: float, top: float, wide: float, high: float) -> str:
    """Runs of slots with the same level, as one path per level."""
    paths: dict[str, list[str]] = {}
    slot = wide / len(levels)
    at = 0
    while at < len(levels):
        end = at
        while end < len(levels) and levels[end] == levels[at]:
            end += 1
        if levels[at] != "0":
            paths.setdefault(levels[at], []).append(
                f"M{left + at * slot:.1f} {top:.1f}h{(end - at) * slot:.2f}v{high}h-{(end - at) * slot:.2f}z"
            )
        at = end
    return "".join(f'<path class="{style} l{level}" d="{"".join(parts)}"/>' for level, parts in sorted(paths.items()))


def row_label(text: str, x: float, y: float, max_width: float) -> str:
    """A right-aligned label at x, at most `max_width` pixels wide, with the full text as its tooltip."""
    shown = shorten_middle(text, max(4, int(max_width / GLYPH_PX)))
    title = f"<title>{escape(text)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="end">{escape(shown)}{title}</text>'


def svg_element(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """The SVG element. On narrow screens it scrolls below a minimum width (classes `wide` and `medium`)."""
    kind = "wide" if width > 600 else "medium" if width > 440 else "small"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


# Ticks of a shorter axis could not be distinguished.
MIN_RANGE = 1e-100
MIN_RELATIVE_RANGE = 1e-12


def tick_values(lo: float, hi: float, target_count: int, *, integer: bool = False) -> list[float]:
    """About `target_count` round numbers that span [lo, hi]; at least two."""
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi - lo < max(MIN_RANGE, MIN_RELATIVE_RANGE * abs(lo)):
        return [lo, lo + _unit_at(lo)]
    rough = (hi - lo) / max(target_count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, 1.0) if integer else step
    step = round(step) if integer else step
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _unit_at(value: float) -> float:
    """1, or more for values to which adding 1 makes no difference."""
    return max(1.0, 1e-6 * abs(value))


def tick_labels(values: Sequence[float], *, as_time: bool = False) -> list[str]:
    """Labels with one unit for all and as few decimals as distinguish them."""
    largest = max((abs(v) for v in values), default=0.0)
    factor, unit = 1.0, ""
    if as_time:
        factor, unit = next(((f, u) for f, u in ((1.0, " s"), (1e3, " ms")) if largest * f >= 1), (1e6, " µs"))
    scaled = [v * factor for v in values]
    decimals = next(
        (d for d in range(7) if all(abs(v - round(v, d)) < 1e-6 * max(largest * factor, 1) for v in scaled)), 6
    )
    return ["0" if v == 0 else f"{v:,.{decimals}f}{unit}" for v in scaled]
