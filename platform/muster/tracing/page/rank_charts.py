"""A heat map as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from muster.tracing.page.axes import GLYPH_PX, WIDE_PX, svg_element, text

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
