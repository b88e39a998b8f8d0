"""What a rank does at each moment of a step, in a fixed number of time slots, for a row of a chart."""

from __future__ import annotations

import numpy as np

from muster.tracing.account.lanes import Lane, sums_within
from muster.tracing.read.spans import Spans

STEP_SLOTS = 400
MAX_SLOTTED_STEPS = 100
FIRST = ord("a")
"""Of the first kind of time."""


def step_slots(kinds: Lane, windows: Spans, count: int) -> tuple[str, ...]:
    """For each of the first 100 windows a letter for each slot: the kind of most of its time, `a` for kind 0. `kinds`
    covers the windows; its codes are below `count`."""
    shown = windows[slice(MAX_SLOTTED_STEPS)]
    edges = np.linspace(shown.start, shown.end, STEP_SLOTS + 1, axis=1).astype(np.int64)
    slots = Spans(edges[:, :-1].ravel(), edges[:, 1:].ravel())
    slot, kind, ns = sums_within(kinds, slots, count)
    most = np.zeros(len(slots), dtype=np.int64)
    order = np.lexsort((-kind, ns))  # the last one of a slot wins: most time, then the kind that counts first
    most[slot[order]] = kind[order]
    letters = (most + FIRST).astype(np.uint8).tobytes().decode("ascii")
    return tuple(letters[i : i + STEP_SLOTS] for i in range(0, len(letters), STEP_SLOTS))
