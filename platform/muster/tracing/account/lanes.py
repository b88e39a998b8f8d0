"""Segments with codes: what one source says about each moment, and the combination of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.spans import Int64, Spans, union

NO_CODE = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Lane:
    """Disjoint segments in order; where several lanes have one, the smallest code counts."""

    start: Int64
    end: Int64
    code: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of_spans(cls, spans: Spans, code: int) -> Lane:
        """The union of spans under one code."""
        merged = union(spans)
        return cls(merged.start, merged.end, np.full(len(merged), code, dtype=np.int32))

    @classmethod
    def of_segments(cls, segments: Spans, code: NDArray[np.int32]) -> Lane:
        """Segments that follow each other without gaps: those of one code as one, and none of a negative code."""
        first = np.flatnonzero(np.append(True, code[1:] != code[:-1])) if len(code) else np.empty(0, dtype=np.int64)
        last = np.append(first[1:], len(code)) - 1
        first, last = (at[code[first] >= 0] for at in (first, last[: len(first)]))
        return cls(segments.start[first], segments.end[last], code[first])

    def select(self, which: NDArray[np.bool_]) -> Lane:
        return Lane(self.start[which], self.end[which], self.code[which])

    def at(self, times: Int64) -> NDArray[np.int32]:
        """The code at each time; NO_CODE outside of the segments."""
        if not len(self):
            return np.full(len(times), NO_CODE, dtype=np.int32)
        found = np.maximum(np.searchsorted(self.start, times, side="right") - 1, 0)
        inside = (self.start[found] <= times) & (times < self.end[found])
        return np.where(inside, self.code[found], NO_CODE).astype(np.int32)


def combine(lanes: Sequence[Lane], start: int, end: int, rest: int) -> Lane:
    """[start, end) without gaps: at each moment the smallest code of all lanes, `rest` where none has one."""
    edges = np.sort(np.concatenate([[start, end], *(lane.start for lane in lanes), *(lane.end for lane in lanes)]))
    edges = edges[np.append(True, edges[1:] != edges[:-1])]
    edges = edges[(edges >= start) & (edges <= end)]
    begin = edges[:-1]
    code = np.full(len(begin), NO_CODE, dtype=np.int32)
    for lane in lanes:
        first = np.searchsorted(begin, lane.start)
        lengths = np.maximum(np.searchsorted(begin, lane.end) - first, 0)
        covered = np.arange(lengths.sum()) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
        code[covered] = np.minimum(code[covered], np.repeat(lane.code, lengths))
    code[code == NO_CODE] = rest
    first = np.append(True, code[1:] != code[:-1]) if len(code) else np.zeros(0, dtype=bool)
    return Lane(begin[first], np.append(begin[first][1:], end), code[first])


def sums_within(lane: Lane, windows: Spans, codes: int) -> tuple[Int64, Int64, Int64]:
    """Of windows, which may overlap: parallel arrays of the window, a code in it, and its nanoseconds there."""
    if not len(lane) or not len(windows):
        return (np.empty(0, dtype=np.int64),) * 3
    first = np.searchsorted(lane.end, windows.start, side="right")
    last = np.searchsorted(lane.start, windows.end, side="left")
    count = np.maximum(last - first, 0)
    window = np.repeat(np.arange(len(windows)), count)
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    at = first[window] + offset
    ns = np.minimum(lane.end[at], windows.end[window]) - np.maximum(lane.start[at], windows.start[window])
    key, position = np.unique(window * codes + lane.code[at], return_inverse=True)
    sums = np.zeros(len(key), dtype=np.int64)
    np.add.at(sums, position, ns)
    keep = sums > 0
    return key[keep] // codes, key[keep] % codes, sums[keep]
