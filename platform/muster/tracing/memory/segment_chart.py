"""A picture of the allocator's segments, as inline SVG: a bar for each, with what lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from muster.tracing.charts import GLYPH_PX, svg_element
from muster.tracing.formatting import format_bytes, format_percent
from muster.tracing.memory.memory_text import category_name
from muster.tracing.memory.segments import SegmentMap

WIDTH: Final = 1040
_ROW_PX, _GAP_PX = 12, 3
_MIN_PX: Final = 0.3  # a narrower piece is not visible


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
