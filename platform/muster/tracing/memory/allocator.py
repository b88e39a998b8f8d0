"""What the allocator holds when the snapshot was taken, how much of it no allocation of the recording needed, and which
allocations failed because the device had no memory left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.tracing.memory.segments import largest_free
from muster.tracing.memory.snapshot import Action, MemorySegment
from muster.tracing.memory.usage import DeviceUsage

_DEFAULT_POOL = "0,0"
MAX_OUT_OF_MEMORY: Final = 5


@dataclass(frozen=True, slots=True)
class Pool:
    """Segments of one pool and stream. `id` is `0,0` unless a CUDA graph or a MemPool owns it."""

    id: str
    stream: int
    segments: int
    reserved_bytes: int
    active_bytes: int


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """The allocator when the snapshot was taken; the names are those of `torch.cuda.memory_stats`.

    `reserved` = `allocated` + `awaiting_free` + `inactive`; `requested` is what programs asked for of `allocated`.
    `awaiting_free` is freed, but another stream may still use it. `inactive` is free in the cache; the part of it in
    segments that are partly in use is `inactive_split`, which `torch.cuda.empty_cache` cannot return.
    """

    segments: int
    expandable: bool | None
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    awaiting_free_bytes: int
    inactive_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int
    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Memory that the allocator reserved and that was never in use at the same time as the rest.

    `unused_bytes` = the highest reserved memory - the highest memory in use - free memory of private pools, at least 0;
    `unused_ratio` is its part of the highest reserved memory. `growths` counts how often the allocator got a segment
    from CUDA although as many bytes were free in its segments (in smaller pieces, or for another stream), and
    `growth_bytes` what it got. `largest_free_bytes` is the largest free piece just before reserved memory became
    highest.
    """

    peak_reserved_bytes: int
    peak_in_use_bytes: int
    unused_bytes: int
    unused_ratio: float
    growths: int
    growth_bytes: int
    largest_free_bytes: int | None


def allocator_state(segments: Iterable[MemorySegment], expandable: bool | None) -> AllocatorState:
    """The final state of the segments of a device."""
    segments = tuple(segments)
    totals = {"active_allocated": 0, "inactive": 0}
    awaiting = requested = split = largest = 0
    pools: dict[tuple[str, int], list[MemorySegment]] = {}
    for segment in segments:
        pools.setdefault((f"{segment.pool[0]},{segment.pool[1]}", segment.stream), []).append(segment)
        is_used = any(block.is_active for block in segment.blocks)
        for block in segment.blocks:
            if block.state in totals:
                totals[block.state] += block.size
            else:
                awaiting += block.size
            if block.state == "active_allocated":
                requested += block.requested
            elif not block.is_active:
                split += block.size if is_used else 0
                largest = max(largest, block.size)
    used = any(segment.is_expandable for segment in segments)
    return AllocatorState(
        segments=len(segments),
        expandable=True if used else expandable if expandable is not None else False if segments else None,
        reserved_bytes=sum(segment.size for segment in segments),
        allocated_bytes=totals["active_allocated"],
        requested_bytes=requested,
        awaiting_free_bytes=awaiting,
        inactive_bytes=totals["inactive"],
        inactive_split_bytes=split,
        largest_free_bytes=largest,
        pools=tuple(
            Pool(
                id=pool,
                stream=stream,
                segments=len(owned),
                reserved_bytes=sum(segment.size for segment in owned),
                active_bytes=sum(b.size for segment in owned for b in segment.blocks if b.is_active),
            )
            for (pool, stream), owned in sorted(pools.items())
        ),
    )


def fragmentation(usage: DeviceUsage, state: AllocatorState) -> Fragmentation:
    """Reserved memory that the recording did not need."""
    highest = int(np.argmax(usage.reserved))
    reserved, in_use = int(usage.reserved[highest]), int(usage.in_use.max())
    private = sum(p.reserved_bytes - p.active_bytes for p in state.pools if p.id != _DEFAULT_POOL)
    unused = max(reserved - in_use - private, 0)
    events = usage.device.events
    grew = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    free_before = usage.reserved[:-1] - usage.in_use[:-1]
    beside_free = grew & (free_before >= events.size)
    return Fragmentation(
        peak_reserved_bytes=reserved,
        peak_in_use_bytes=in_use,
        unused_bytes=unused,
        unused_ratio=unused / reserved if reserved > 0 else 0.0,
        growths=int(beside_free.sum()),
        growth_bytes=int(events.size[beside_free].sum()),
        largest_free_bytes=largest_free(usage, max(highest - 2, -1)),
    )


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
