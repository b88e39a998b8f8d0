"""Who was at work at each moment on a thread: events nest, and only the innermost one is really running."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.events import Events
from muster.tracing.spans import Int64, Spans


@dataclass(frozen=True, slots=True)
class CallTree:
    """The events of one thread as a tree.

    `order` are positions in the events given, by start; `parent` positions in `order` (-1: none). A child that ends
    after its parent is cut there. `stretches` are the times between two edges, and `owner` (a position in `order`,
    -1: nobody) tells the innermost event of each.
    """

    order: Int64
    parent: Int64
    segments: Spans
    innermost: Int64

    def self_time(self) -> Int64:
        """Nanoseconds in which each event (in `order`) was the innermost."""
        sums = np.zeros(len(self.order) + 1, dtype=np.int64)
        np.add.at(sums, self.innermost, self.segments.end - self.segments.start)
        return sums[:-1]


def build_call_tree(events: Events) -> CallTree:
    """The tree of one thread's events; events without duration take no part."""
    lasting = np.flatnonzero(events.end > events.start)
    start, end = events.start[lasting], events.end[lasting]
    by_start = np.lexsort((-end, start))
    order = lasting[by_start]
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
    owner_after = np.concatenate((parent, index))
    # At one time: first what ends (inner before outer), then what starts (outer before inner).
    tie = np.concatenate((-1 - index, index))
    edges = np.lexsort((tie, times))
    times, owner_after = times[edges], owner_after[edges]
    return CallTree(order, parent, Spans(times[:-1], times[1:]), owner_after[:-1])
