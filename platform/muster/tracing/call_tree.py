"""The call tree of a thread's events: at each time only the innermost event runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.events import Events
from muster.tracing.spans import Int64, Spans


@dataclass(frozen=True, slots=True)
class CallTree:
    """The events of one thread as a tree.

    `order` are positions in the given events, by start; `parent` positions in `order` (-1: none). A child that ends
    after its parent is cut there. `segments` are the times between two edges, `innermost` the innermost event of each
    (a position in `order`, -1: none).
    """

    order: Int64
    parent: Int64
    segments: Spans
    innermost: Int64

    def self_time(self) -> Int64:
        """Nanoseconds for which each event (in `order`) was the innermost."""
        sums = np.zeros(len(self.order) + 1, dtype=np.int64)
        np.add.at(sums, self.innermost, self.segments.end - self.segments.start)
        return sums[:-1]


def build_call_tree(events: Events) -> CallTree:
    """The tree of one thread's events, without events of zero duration."""
    nonempty = np.flatnonzero(events.end > events.start)
    start, end = events.start[nonempty], events.end[nonempty]
    by_start = np.lexsort((-end, start))
    order = nonempty[by_start]
    starts = start[by_start].tolist()
    ends = end[by_start].tolist()
    parent = [-1] * len(starts)
    open_events: list[int] = []
    for i, begin in enumerate(starts):
        while open_events and ends[open_events[-1]] <= begin:
            open_events.pop()
        if open_events:
            outer = open_events[-1]
            parent[i] = outer
            if ends[i] > ends[outer]:
                ends[i] = ends[outer]
        open_events.append(i)
    return _segments(order, np.array(parent, dtype=np.int64), np.array(starts, np.int64), np.array(ends, np.int64))


def _segments(order: Int64, parent: Int64, start: Int64, end: Int64) -> CallTree:
    count = len(order)
    if not count:
        none = np.empty(0, dtype=np.int64)
        return CallTree(order, parent, Spans(none, none), none)
    index = np.arange(count)
    times = np.concatenate((end, start))
    innermost_after = np.concatenate((parent, index))
    # At the same time, ends come first (inner before outer), then starts (outer before inner).
    tie = np.concatenate((-1 - index, index))
    edges = np.lexsort((tie, times))
    times, innermost_after = times[edges], innermost_after[edges]
    return CallTree(order, parent, Spans(times[:-1], times[1:]), innermost_after[:-1])
