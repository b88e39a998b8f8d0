"""A heat map: cells as inline SVG that fills the width, with labels beside it that keep their size."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from muster.tracing.page.axes import GLYPH_PX, WIDE_PX

HEAT_LEVELS = 6  # CSS classes h0 (lowest) to h5
_MAX_CELL_PX = 64.0
_MIN_LABEL_PX = 14.0  # height of a row's label
_NARROW_PX = 270.0  # what columns have on a phone
_MANY_COLUMNS = 60


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
    """A cell per row and column, as wide as the window permits; those too small for their labels have some."""
    high = 22 if len(heat.rows) <= 8 else 15 if len(heat.rows) <= 32 else 9
    gap = 2 if high > 12 and len(heat.columns) <= _MANY_COLUMNS else 1
    wide = min(WIDE_PX, _MAX_CELL_PX * len(heat.columns))
    cell = wide / len(heat.columns)
    cells = [
        f'<rect class="h{one.level}" x="{j * cell:.1f}" y="{i * high}" width="{cell - gap:.1f}" height="{high - gap}">'
        f"<title>{escape(one.tooltip)}</title></rect>"
        for i, row in enumerate(heat.cells)
        for j, one in enumerate(row)
        if one is not None
    ]
    every = _label_interval(high, _MIN_LABEL_PX)
    names = "".join(
        f'<span style="top:{i * high}px;line-height:{high * every if every == 1 else _MIN_LABEL_PX:.0f}px">'
        f"{escape(name)}</span>"
        for i, name in enumerate(heat.rows)
        if i % every == 0
    )
    longest = GLYPH_PX * max(map(len, heat.columns)) + 8
    steps = range(0, len(heat.columns), _label_interval(_NARROW_PX / len(heat.columns), longest))
    below = "".join(
        f'<span style="left:{100 * (j + 0.5) / len(heat.columns):.2f}%">{escape(heat.columns[j])}</span>' for j in steps
    )
    left = GLYPH_PX * max(map(len, heat.rows)) + 8
    size = f"{wide:.0f} {high * len(heat.rows)}"
    return (
        f'<div class="heat" style="grid-template-columns:{left:.0f}px minmax(0,{wide:.0f}px)">'
        f'<div class="rows">{names}</div>'
        f'<svg viewBox="0 0 {size}" preserveAspectRatio="none" style="height:{high * len(heat.rows)}px" role="img" '
        f'aria-label="{escape(heat.title)}">{"".join(cells)}</svg>'
        f'<span class="quiet">{escape(heat.x_name)}</span><div class="columns">{below}</div></div>'
    )


def _label_interval(size_px: float, needed_px: float) -> int:
    """Every how many rows or columns of this size have a label."""
    return max(1, -int(-needed_px // size_px))
