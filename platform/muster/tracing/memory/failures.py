"""Allocations that failed because the device had no memory left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.tracing.memory.segments import largest_free
from muster.tracing.memory.snapshot import Action
from muster.tracing.memory.usage import DeviceUsage

MAX_OUT_OF_MEMORY: Final = 5


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed. `largest_free_bytes`: the largest free piece within the segments at that time, None
    if that would take too long to reconstruct."""

    at_s: float
    event: int
    requested_bytes: int
    device_free_bytes: int
    in_use_bytes: int
    reserved_bytes: int
    largest_free_bytes: int | None
    place: str
    frames: tuple[str, ...]


def out_of_memory(usage: DeviceUsage) -> tuple[int, tuple[OutOfMemory, ...]]:
    """The number of failed allocations, and the first ones."""
    events = usage.device.events
    failed = np.flatnonzero(events.action == Action.OOM)
    return len(failed), tuple(
        OutOfMemory(
            at_s=usage.seconds(event),
            event=event,
            requested_bytes=int(events.size[event]),
            device_free_bytes=int(events.device_free[event]),
            in_use_bytes=int(usage.in_use[event + 1]),
            reserved_bytes=int(usage.reserved[event + 1]),
            largest_free_bytes=largest_free(usage, event),
            place=usage.places.name(int(events.stack[event])),
            frames=usage.places.frames(int(events.stack[event])),
        )
        for event in failed[:MAX_OUT_OF_MEMORY].tolist()
    )
