"""Sets of time spans as arrays, with union, intersection and total duration.

A span is half-open, [start, end), in nanoseconds. `coverage` computes all overlaps between sets of spans (compute,
communication, ...): which sets are active in each elementary interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Parallel arrays of starts and ends in nanoseconds, in any order; spans may overlap or be empty."""

    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, which: NDArray[np.bool_] | NDArray[np.int32] | Int64 | slice) -> Spans:
        return Spans(self.start[which], self.end[which])


@dataclass(frozen=True, slots=True)
class Coverage:
    """Time divided at every edge of every set.

    `active[i]` has bit k set where set k covers [edges[i], edges[i + 1]); `active` is one shorter than `edges`
    (both are empty without spans).
    """

    edges: Int64
    active: Int64

    def total(self, wanted: NDArray[np.bool_]) -> int:
        """Nanoseconds of the intervals selected by a mask over `active`."""
        return int(np.diff(self.edges)[wanted].sum()) if len(self.active) else 0

    def spans(self, wanted: NDArray[np.bool_]) -> Spans:
        """The selected intervals as disjoint spans, in order, adjacent ones joined."""
        return union(Spans(self.edges[:-1][wanted], self.edges[1:][wanted])) if len(self.active) else EMPTY


EMPTY = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def spans_from_pairs(pairs: Sequence[tuple[int, int]]) -> Spans:
    """Spans from (start, end) pairs in nanoseconds."""
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return Spans(array[:, 0], array[:, 1])


def concatenate(parts: Sequence[Spans]) -> Spans:
    """All spans of all parts, unchanged."""
    if not parts:
        return EMPTY
    return Spans(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))


def union(spans: Spans) -> Spans:
    """The same time as disjoint spans in order; spans that touch are joined."""
    spans = spans[spans.end > spans.start]
    if not len(spans):
        return EMPTY
    order = np.argsort(spans.start, kind="stable")
    start, end = spans.start[order], np.maximum.accumulate(spans.end[order])
    first = np.empty(len(start), dtype=bool)
    first[0] = True
    first[1:] = start[1:] > end[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return Spans(start[first], end[last])


def total_ns(spans: Spans) -> int:
    """Nanoseconds covered by at least one span."""
    merged = union(spans)
    return int((merged.end - merged.start).sum())


def coverage(sets: Sequence[Spans]) -> Coverage:
    """Divide time at every edge; determines which of the sets (at most 62) are active in each interval."""
    merged = [union(s) for s in sets]
    times = np.concatenate([m.start for m in merged] + [m.end for m in merged]) if merged else EMPTY.start
    if not len(times):
        return Coverage(EMPTY.start, EMPTY.start)
    bits = [np.full(len(m), 1 << k, dtype=np.int64) for k, m in enumerate(merged)]
    deltas = np.concatenate(bits + [-b for b in bits])
    order = np.argsort(times, kind="stable")
    times, states = times[order], np.cumsum(deltas[order])
    # Several edges can share one time: the state that counts is the one after the last of them.
    last = np.append(times[1:] != times[:-1], True)
    return Coverage(times[last], states[last][:-1])


def intersect(a: Spans, b: Spans) -> Spans:
    """The time in both sets, as disjoint spans in order."""
    cut = coverage((a, b))
    return cut.spans(cut.active == 3)


def covered_before(spans: Spans, times: Int64) -> Int64:
    """For each time, the nanoseconds of disjoint spans in order (as `union` gives them) that lie before it."""
    if not len(spans):
        return np.zeros(len(times), dtype=np.int64)
    lengths = spans.end - spans.start
    before = np.cumsum(lengths) - lengths
    at = np.maximum(np.searchsorted(spans.start, times, side="right") - 1, 0)
    covered: Int64 = before[at] + np.clip(times - spans.start[at], 0, lengths[at])
    return covered


def covered_within(spans: Spans, windows: Spans) -> Int64:
    """For each window, the nanoseconds of it that disjoint spans in order cover."""
    return covered_before(spans, windows.end) - covered_before(spans, windows.start)


def groups(keys: NDArray[np.int32] | Int64) -> list[Int64]:
    """The positions of each distinct key, in order of keys; positions are in order within a group."""
    order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else []
