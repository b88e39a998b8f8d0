"""Charts with one row per rank or kind, as inline SVG: a heat map, and bars on a common scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from muster.tracing.page.axes import GLYPH_PX, WIDE_PX, Area, row_label, svg_element, text, tick_labels, tick_values

HEAT_LEVELS = 6  # CSS classes h0 (lowest) to h5
_MAX_CELL_PX = 64.0
_MIN_LABEL_PX = 14.0  # height of a row's label
_MAX_COLUMN_LABEL_GAP_PX = 90.0


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell: its level (0 to 5, the colour) and its tooltip."""

    level: int
    tooltip: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cells by row and column (None: unknown), with labels for both; `x_name` is below the columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[HeatCell | None, ...], ...]
    x_name: str


@dataclass(frozen=True, slots=True)
class ValueBar:
    """A bar of a row: `value` in the unit of the axis, the CSS class `style`, optionally a `spread` (from, to)."""

    style: str
    value: float
    tooltip: str
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A label, the bars below each other, and a note after them."""

    label: str
    bars: tuple[ValueBar, ...]
    note: str = ""


def heat_map_chart(heat: HeatMap) -> str:
    """A cell per row and column; rows and columns too small for their labels are labelled at intervals."""
    left = 14 + GLYPH_PX * max(map(len, heat.rows))
    cell = min((WIDE_PX - left - 12) / len(heat.columns), _MAX_CELL_PX)
    high = 22.0 if len(heat.rows) <= 8 else 15.0 if len(heat.rows) <= 32 else 9.0
    gap = 2.0 if min(cell, high) > 12 else 1.0
    bottom = high * len(heat.rows)
    out = []
    for i, (name, cells) in enumerate(zip(heat.rows, heat.cells, strict=True)):
        if i % _label_interval(high, _MIN_LABEL_PX) == 0:
            out.append(text(name, left - 8, i * high + high / 2 + 4, anchor="end"))
        out.append(f'<g transform="translate({left:.1f} {i * high:.1f})">')
        for j, one in enumerate(cells):
            if one is not None:
                out.append(
                    f'<rect class="h{one.level}" x="{j * cell:.1f}" width="{cell - gap:.1f}" height="{high - gap:.0f}">'
                    f"<title>{escape(one.tooltip)}</title></rect>"
                )
        out.append("</g>")
    longest = GLYPH_PX * max(map(len, heat.columns)) + 8
    interval = _label_interval(cell, max(longest, _MAX_COLUMN_LABEL_GAP_PX if cell < longest else 0))
    for j in range(0, len(heat.columns), interval):
        at = left + (j + 0.5) * cell - gap / 2
        out.append(text(heat.columns[j], at, bottom + 14, style="quiet"))
    centre = left + cell * len(heat.columns) / 2
    out.append(text(heat.x_name, centre, bottom + 32, style="quiet"))
    used = max(left + cell * len(heat.columns) + 12, centre + GLYPH_PX * len(heat.x_name) / 2)
    return svg_element(min(used, WIDE_PX), bottom + 36, heat.title, out)


def _label_interval(size_px: float, needed_px: float) -> int:
    """Every how many rows or columns of this size have a label."""
    return max(1, -int(-needed_px // size_px))


def value_bar_chart(rows: Sequence[ValueRow], title: str, *, as_time: bool = False, suffix: str = "") -> str:
    """Horizontal bars from 0 to the largest value, in seconds (`as_time`) or in the unit `suffix`."""
    count = max(len(row.bars) for row in rows)
    thick, gap = (16 if count == 1 else 9, 8) if len(rows) <= 24 else (10 if count == 1 else 5, 4)
    pitch = max(count * thick, 12) + gap
    left = min(20 + GLYPH_PX * max(len(row.label) for row in rows), 340)
    largest = max(max((bar.value, *(bar.spread or ()))) for row in rows for bar in row.bars)
    ticks = tick_values(0, largest if largest > 0 else 1, 6)
    names = [name + suffix for name in tick_labels(ticks, as_time=as_time)]
    right = 16 + GLYPH_PX * max(len(names[-1]) / 2, *(len(row.note) for row in rows))
    area = Area(left, 0, WIDE_PX - left - right, len(rows) * pitch, x_range=(0, ticks[-1]))
    out = area.x_axis(ticks, names, lines=True)
    for i, row in enumerate(rows):
        top, middle = i * pitch, i * pitch + (pitch - gap) / 2 + 4
        out.append(row_label(row.label, left - 10, middle, left - 12))
        start = top + (pitch - gap - thick * len(row.bars)) / 2
        for j, bar in enumerate(row.bars):
            out.append(_value_bar(bar, row.label, area, start + j * thick, thick - 1))
        if row.note:
            out.append(text(row.note, left + area.wide + 12, middle, anchor="start", style="quiet"))
    return svg_element(WIDE_PX, area.bottom + 22, title, out)


def _value_bar(bar: ValueBar, label: str, area: Area, top: float, high: float) -> str:
    tooltip = f"<title>{escape(label)}: {escape(bar.tooltip)}</title>"
    length = max(area.x(bar.value) - area.left, 1.0)
    out = (
        f'<rect class="{bar.style}" x="{area.left:.1f}" y="{top:.1f}" width="{length:.1f}" height="{high}">{tooltip}'
        "</rect>"
    )
    if bar.spread is not None:
        low, high_end = (area.x(value) for value in bar.spread)
        middle = top + high / 2
        out += f'<path class="spread" d="M{low:.1f} {middle - 3:.1f}v6M{low:.1f} {middle:.1f}H{high_end:.1f}m0 -3v6"/>'
    return out
