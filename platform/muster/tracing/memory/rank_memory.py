"""The analysis of one snapshot: the memory of one rank, a few kilobytes, so that many ranks fit in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from muster.errors import InvalidTrace
from muster.tracing.memory.allocator import (
    AllocatorState,
    Fragmentation,
    OutOfMemory,
    allocator_state,
    fragmentation,
    out_of_memory,
)
from muster.tracing.memory.categories import Category, Origin, categorise, stack_origins
from muster.tracing.memory.lifetimes import reconstruct_allocations, reserved_over_events
from muster.tracing.memory.places import Places
from muster.tracing.memory.segments import SegmentMap, segment_maps
from muster.tracing.memory.snapshot import DeviceSnapshot, MemorySnapshot, decode_snapshot
from muster.tracing.memory.usage import DeviceUsage, MemoryPoint, Peak, peak, timeline
from muster.tracing.read.restricted_pickle import DEFAULT_MEMORY_LIMITS, MemoryLimits, read_pickle

SNAPSHOT_NAME: Final = re.compile(r"rank-(\d{1,9})\.attempt-(\d{1,9})\.steps-(\d{1,18})-(\d{1,18})\.pickle(?:\.gz)?")
_RANK_IN_NAME: Final = re.compile(r"rank[-_]?(\d{1,9})", re.IGNORECASE)

BytesByStack: TypeAlias = dict[tuple[str, str, tuple[str, ...]], int]
"""Bytes by category, place and the lines of Python outside torch (innermost first)."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of a rank's device.

    `label` is the rank, or the file's name if that does not contain it. `attempt` and `steps` (half-open) are known for
    snapshots in a run folder. `duration_s` is the time from the first event to the last. `segments` are the largest at
    the first failed allocation, without one at the peak. `recomputes`: whether the stacks show that activations are
    recomputed. `notes` are sentences about what the snapshot lacks.
    """

    label: str
    rank: int | None
    source: str
    device: int
    attempt: int | None
    steps: tuple[int, int] | None
    events: int
    duration_s: float
    peak: Peak
    allocator: AllocatorState
    fragmentation: Fragmentation
    out_of_memory_count: int
    out_of_memory: tuple[OutOfMemory, ...]
    timeline: tuple[MemoryPoint, ...]
    segments: tuple[SegmentMap, ...]
    recomputes: bool
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Such as `rank 3`, or the name of the file."""
        return rank_name(self.label)


@dataclass(frozen=True, slots=True)
class AnalysedSnapshot:
    """The memory of one device, and all that was held at its peak and at its end, for comparisons."""

    memory: RankMemory
    at_peak: BytesByStack
    at_end: BytesByStack


@dataclass(frozen=True, slots=True)
class UnreadableSnapshot:
    """A file that could not be analysed, and why."""

    source: str
    reason: str


def rank_name(label: str) -> str:
    """The label of a rank in sentences: `rank 3`, or the name of a file as it is."""
    return f"rank {label}" if label[:1].isdecimal() else label


def analyse_snapshot_file(
    path: Path, limits: MemoryLimits = DEFAULT_MEMORY_LIMITS
) -> tuple[AnalysedSnapshot, ...] | UnreadableSnapshot:
    """The memory of each device in a snapshot. Returns an UnreadableSnapshot instead of raising, so that the other
    ranks are analysed."""
    try:
        try:
            snapshot = decode_snapshot(read_pickle(path, limits), limits.events)
        except InvalidTrace as error:
            return UnreadableSnapshot(str(path), str(error).removeprefix(f"{path}: "))
    except OSError as error:
        return UnreadableSnapshot(str(path), str(error))
    used = [device for device in snapshot.devices if len(device.events) or device.segments]
    if not used:
        return UnreadableSnapshot(str(path), "the snapshot is empty: no memory of a GPU is in use, and no history")
    return tuple(_analyse_device(snapshot, device, path, several=len(used) > 1) for device in used)


def _analyse_device(snapshot: MemorySnapshot, device: DeviceSnapshot, path: Path, *, several: bool) -> AnalysedSnapshot:
    allocations = reconstruct_allocations(device)
    origins = stack_origins(snapshot)
    usage = DeviceUsage(
        device=device,
        allocations=allocations,
        category=categorise(snapshot, device, allocations, origins),
        in_use=allocations.bytes_over_events(),
        reserved=reserved_over_events(device),
        places=Places(snapshot),
    )
    state = allocator_state(device.segments, snapshot.expandable_segments)
    highest = peak(usage)
    failed, failures = out_of_memory(usage)
    named = SNAPSHOT_NAME.fullmatch(path.name)
    in_name = _RANK_IN_NAME.findall(path.name)
    rank = int(named[1]) if named else int(in_name[-1]) if in_name else None
    label = path.name.removesuffix(".gz").removesuffix(".pickle") if rank is None else str(rank)
    memory = RankMemory(
        label=f"{label} (GPU {device.device})" if several else label,
        rank=rank,
        source=str(path),
        device=device.device,
        attempt=int(named[2]) if named else None,
        steps=(int(named[3]), int(named[4])) if named else None,
        events=len(device.events),
        duration_s=usage.seconds(len(device.events) - 1),
        peak=highest,
        allocator=state,
        fragmentation=fragmentation(usage, state),
        out_of_memory_count=failed,
        out_of_memory=failures,
        timeline=timeline(usage),
        segments=segment_maps(usage, failures[0].event if failures else highest.event),
        recomputes=bool((origins.of_stack & (Origin.RECOMPUTE | Origin.CHECKPOINTED)).any()),
        notes=tuple(_notes(usage, highest)),
    )
    return AnalysedSnapshot(memory, _held(usage, highest.event), _held(usage, len(device.events) - 1))


def _held(usage: DeviceUsage, event: int) -> BytesByStack:
    """What is in use after an event, by category and stack; stacks of the same lines of the program are added up."""
    found: BytesByStack = {}
    for (category, stack), (size, _) in usage.holders(event).items():
        key = category, usage.places.name(stack), usage.places.program_frames(stack)
        found[key] = found.get(key, 0) + size
    return found


def _notes(usage: DeviceUsage, highest: Peak) -> list[str]:
    notes = []
    if not usage.allocations.events:
        notes.append("no history was recorded: the peak is the memory in use when the snapshot was taken")
    unknown = highest.by_category.get(Category.UNKNOWN, 0)
    if highest.in_use_bytes and unknown >= 0.5 * highest.in_use_bytes:
        notes.append(
            "most of the memory was allocated before the recording, and its use is unknown: record from the start of"
            " the program, or with `muster trace JOB --memory`"
        )
    if usage.allocations.unmatched:
        count = usage.allocations.unmatched
        notes.append(f"{count:,} allocations have no end in the recording although they ended: events are missing")
    return notes
