"""The memory that a rank's allocator held during the traced steps, from the profiler's `[memory]` events.

They are recorded with `profile_memory` (`muster trace --with memory`), one for each allocation and each free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import MemorySamples
from muster.tracing.work.steps import StepTable

MEMORY_SLOTS = 200


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The memory from the begin of the first traced step to the end of the last one, `duration_s` later.

    `bytes` are the maxima of `MEMORY_SLOTS` equal parts of it.
    """

    duration_s: float
    bytes: tuple[int, ...]


def memory_curve(samples: MemorySamples, steps: StepTable) -> MemoryCurve | None:
    """The curve of a trace; None without steps or without a sample before the end of the last one."""
    if not len(steps):
        return None
    start, end = int(steps.windows.start.min()), int(steps.windows.end.max())
    if not (samples.time < end).any() or end <= start:
        return None
    edges = np.linspace(start, end, MEMORY_SLOTS + 1)
    at = np.searchsorted(samples.time, edges)
    # In force at the begin of each slot: the sample before; before the first sample it is unknown and taken from that.
    held = samples.allocated[np.maximum(at[:-1] - 1, 0)]
    slots = held.copy()
    inside = slice(at[0], at[-1])
    slot = np.searchsorted(at, np.arange(len(samples.time))[inside], side="right") - 1
    np.maximum.at(slots, slot, samples.allocated[inside])
    return MemoryCurve((end - start) / 1e9, tuple(slots.tolist()))
