"""A heat map as inline SVG, from the width of a phone to that of a screen."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from muster.tracing.page.axes import GLYPH_PX, text

HEAT_LEVELS = 6  # CSS classes h0 (lowest) to h5
_MIN_LABEL_PX = 14.0  # height of a row's label
_PHONE_PX = 270.0  # what the columns have on a phone: their labels fit there
_FEW_COLUMNS = 12


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
    """A cell per row and column, which share the width of the page, beside labels that keep their size; rows and
    columns too small for their labels are labelled at intervals. It has no inline style, which the dashboard forbids.
    """
    high = 22 if len(heat.rows) <= 8 else 15 if len(heat.rows) <= 32 else 9
    bottom, left, wide = high * len(heat.rows), 14 + GLYPH_PX * max(map(len, heat.rows)), 100 / len(heat.columns)
    names = [
        text(name, left - 8, i * high + high / 2 + 4, anchor="end")
        for i, name in enumerate(heat.rows)
        if i % _label_interval(high, _MIN_LABEL_PX) == 0
    ]
    out = [
        f'<rect class="h{one.level}" x="{j * wide:.3f}%" y="{i * high}" width="{wide:.3f}%" height="{high}">'
        f"<title>{escape(one.tooltip)}</title></rect>"
        for i, cells in enumerate(heat.cells)
        for j, one in enumerate(cells)
        if one is not None
    ]
    interval = _label_interval(_PHONE_PX / len(heat.columns), GLYPH_PX * max(map(len, heat.columns)) + 8)
    labels = [((j + 0.5) * wide, bottom + 14, heat.columns[j]) for j in range(0, len(heat.columns), interval)]
    out += [
        f'<text class="quiet" x="{x:.3f}%" y="{y}" text-anchor="middle">{escape(label)}</text>'
        for x, y, label in [*labels, (50, bottom + 32, heat.x_name)]
    ]
    few = " few" if len(heat.columns) <= _FEW_COLUMNS else ""
    return (
        f'<div class="heat"><svg width="{left:.0f}" height="{bottom}">{"".join(names)}</svg>'
        f'<svg class="cells{few}" width="100%" height="{bottom + 36}" role="img" aria-label="{escape(heat.title)}">'
        f"{''.join(out)}</svg></div>"
    )


def _label_interval(size_px: float, needed_px: float) -> int:
    """Every how many rows or columns of this size have a label."""
    return max(1, -int(-needed_px // size_px))
