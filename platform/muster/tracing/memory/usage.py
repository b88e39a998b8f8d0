"""Memory over time and at the peak: in use, reserved, by category and by stack."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.tracing.memory.categories import ORDER
from muster.tracing.memory.lifetimes import Allocations
from muster.tracing.memory.places import Places
from muster.tracing.memory.snapshot import DeviceSnapshot
from muster.tracing.read.spans import Int64

MAX_POINTS: Final = 400
MAX_HOLDERS: Final = 30


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory in use at one time: bytes and number of the allocations of one category and stack, or place.

    `frames` are `file:line:function`, innermost first, and `program_frames` those of Python outside torch; both are
    empty for a place, which may have several stacks.
    """

    category: str
    place: str
    frames: tuple[str, ...]
    program_frames: tuple[str, ...]
    bytes: int
    allocations: int


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory after an event, `at_s` seconds after the first; bytes in use by category, without those of zero."""

    at_s: float
    event: int
    reserved_bytes: int
    in_use_bytes: int
    by_category: dict[str, int]


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest memory in use during the recording, at its first time, and who holds it; largest holders first."""

    at_s: float
    event: int
    in_use_bytes: int
    reserved_bytes: int
    by_category: dict[str, int]
    by_place: tuple[Holder, ...]
    by_stack: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The usage of a device over the events: at the beginning of the recording, then after each event."""

    device: DeviceSnapshot
    allocations: Allocations
    category: NDArray[np.int8]
    in_use: Int64
    reserved: Int64
    places: Places

    def seconds(self, event: int) -> float:
        """The time of an event since the first; 0 without times."""
        times = self.device.events.time_us
        return max(float(times[event] - times[0]) / 1e6, 0.0) if 0 <= event < len(times) else 0.0

    def by_category(self, event: int) -> dict[str, int]:
        """Bytes in use after an event, by category."""
        chosen = self.allocations.in_use_at(event)
        totals = np.zeros(len(ORDER), dtype=np.int64)
        np.add.at(totals, self.category[chosen], self.allocations.size[chosen])
        return {str(category): total for category, total in zip(ORDER, totals.tolist(), strict=True) if total}

    def holders(self, event: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Bytes and number of the allocations in use after an event, by category and stack."""
        chosen = np.flatnonzero(self.allocations.in_use_at(event))
        keys = self.category[chosen].astype(np.int64) << 32 | self.allocations.stack[chosen].astype(np.int64)
        kinds, inverse = np.unique(keys, return_inverse=True)
        total = np.zeros(len(kinds), dtype=np.int64)
        np.add.at(total, inverse, self.allocations.size[chosen])
        counts = np.bincount(inverse, minlength=len(kinds))
        return {
            (str(ORDER[kind >> 32]), kind & 0xFFFFFFFF): (held, number)
            for kind, held, number in zip(kinds.tolist(), total.tolist(), counts.tolist(), strict=True)
        }


def peak(usage: DeviceUsage) -> Peak:
    """The peak of memory in use."""
    event = int(np.argmax(usage.in_use)) - 1
    held = usage.holders(event)
    return Peak(
        at_s=usage.seconds(event),
        event=event,
        in_use_bytes=int(usage.in_use[event + 1]),
        reserved_bytes=int(usage.reserved[event + 1]),
        by_category=usage.by_category(event),
        by_place=_by_place(held, usage.places),
        by_stack=_by_stack(held, usage.places),
    )


def _by_stack(held: dict[tuple[str, int], tuple[int, int]], places: Places) -> tuple[Holder, ...]:
    largest = sorted(held.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_HOLDERS]
    return tuple(
        Holder(category, places.name(stack), places.frames(stack), places.program_frames(stack), size, count)
        for (category, stack), (size, count) in largest
    )


def _by_place(held: dict[tuple[str, int], tuple[int, int]], places: Places) -> tuple[Holder, ...]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for (category, stack), (size, count) in held.items():
        key = category, places.name(stack)
        before = totals.get(key, (0, 0))
        totals[key] = before[0] + size, before[1] + count
    largest = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_HOLDERS]
    return tuple(Holder(category, place, (), (), size, count) for (category, place), (size, count) in largest)


def timeline(usage: DeviceUsage) -> tuple[MemoryPoint, ...]:
    """At most `MAX_POINTS` points; each is the event of a range of events after which most memory is in use."""
    count = len(usage.in_use)
    bounds = np.unique(np.linspace(0, count, min(count, MAX_POINTS) + 1).astype(np.int64))
    chosen = [int(low + np.argmax(usage.in_use[low:high])) for low, high in pairwise(bounds)]
    parts = {}
    for number, category in enumerate(ORDER):
        of_category = usage.category == number
        if of_category.any():
            parts[str(category)] = usage.allocations.bytes_over_events(of_category)[chosen]
    return tuple(
        MemoryPoint(
            at_s=usage.seconds(index - 1),
            event=index - 1,
            reserved_bytes=int(usage.reserved[index]),
            in_use_bytes=int(usage.in_use[index]),
            by_category={name: int(values[row]) for name, values in parts.items() if values[row]},
        )
        for row, index in enumerate(chosen)
    )
