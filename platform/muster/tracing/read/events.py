"""The events of one trace file as columns (NumPy arrays), its profiled steps, and the call tree of a thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.damage import Damage
from muster.tracing.read.operator_shapes import OperatorShapes
from muster.tracing.read.spans import Int64, Spans
from muster.tracing.trace_details import TraceDetails

Int32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


class EventKind(IntEnum):
    """The kind of an event, from its category."""

    CPU_OP = 0
    ANNOTATION = 1  # record_function on the CPU: ProfilerStep#, Optimizer.step#, gloo:, FSDP::
    RUNTIME = 2  # cudaLaunchKernel and other runtime or driver calls
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6  # a stream or event wait shown on the device's rows; no work
    DEVICE_ANNOTATION = 7  # a CPU annotation shown on the device's rows; no work
    OTHER = 8


STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")
NO_STREAM_UNSIGNED = -2
DEVICE_WORK = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)


@dataclass(frozen=True, slots=True)
class TraceThread:
    """A row of the trace: a CPU thread or a device stream. `name` is empty if the trace has none."""

    pid: str
    tid: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Events:
    """Complete events as parallel columns, in file order.

    `start` and `end` are nanoseconds since the trace's origin; `name`, `thread` and `collective` index the trace's
    `names` and `threads` (-1: none); `stream` and `correlation` are -1 where absent, `stream` is
    `NO_STREAM_UNSIGNED` where the file has 2**32 - 1. `correlation` links a device
    event to the runtime call that launched it. For a collective, `group` is the position in `names` of its process
    group and the group's ranks, and `message_bytes` the larger one of what it reads and writes (-1: unknown).
    For a kernel, `grid` is the position of its grid and block in the trace's `grids` (-1: not recorded).
    """

    kind: NDArray[np.int8]
    name: Int32
    thread: Int32
    start: Int64
    end: Int64
    stream: Int64
    correlation: Int64
    collective: Int32
    group: Int32
    message_bytes: Int64
    grid: Int32

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, which: Mask | Int64) -> Events:
        rows = np.flatnonzero(which) if which.dtype == np.bool_ else which  # found once, not for each column
        return Events(**{column: getattr(self, column)[rows] for column in self.__slots__})

    @property
    def spans(self) -> Spans:
        return Spans(self.start, self.end)

    @property
    def duration(self) -> Int64:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class MemorySamples:
    """What the allocator held at some times: nanoseconds since the trace's origin, in order, and bytes.

    Of the device's allocator if the trace has it, else of the CPU's, which counts from the start of the profiler.
    """

    time: Int64
    allocated: Int64


@dataclass(frozen=True, slots=True)
class TransferCalls:
    """Calls of sends and receives by the host, by start: what the events of their transfers do not say.

    `peer` is the other rank's position in the process group, `group` the group's name as a position in `names`; -1:
    not recorded, also for `message_bytes`.
    """

    start: Int64
    end: Int64
    sends: Mask
    peer: Int32
    group: Int32
    message_bytes: Int64

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of this rank as torch.distributed lists it: name, description (`mesh_pp`), global ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The pipeline schedule of a run: pipeline ranks, micro-batches per step, and the share of a step in which each
    rank waits if all stages take the same time (0 to 1)."""

    schedule: str
    ranks: int
    micro_batches: int
    ideal_bubble: float


@dataclass(frozen=True)
class Trace:
    """One trace file.

    `rank`, `world_size` and `backend` come from distributedInfo, `job` and `pipeline` from Muster's entry; None if
    missing. `origin_us` is the file's time of nanosecond 0. `decoded_events` counts all events of the file,
    including those not kept; `invalid_events` those without a valid time.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str | None
    job: str | None
    origin_us: float
    decoded_events: int
    invalid_events: int
    process_groups: tuple[ProcessGroup, ...]
    names: tuple[str, ...]
    threads: tuple[TraceThread, ...]
    events: Events
    pipeline: PipelineSchedule | None = None
    details: TraceDetails | None = None
    """None unless `read_trace` was asked for some."""
    memory: MemorySamples | None = None
    grids: tuple[str, ...] = ()
    transfers: TransferCalls | None = None
    """None if the trace has no sends or receives."""
    shapes: OperatorShapes | None = None
    """None if the trace has none (`record_shapes`)."""
    with_stack: bool = False
    """Whether stacks of Python functions were recorded."""
    base_us: float = 0.0
    """What to add to `origin_us` for microseconds since 1970."""
    damage: Damage | None = None
    """What could not be read; None for a whole file."""

    def of_kind(self, *kinds: EventKind) -> Events:
        """The events of these kinds."""
        return self.events[np.isin(self.events.kind, kinds)]

    @property
    def kernels(self) -> Events:
        return self.of_kind(EventKind.KERNEL)

    @property
    def launches(self) -> Events:
        return self.events[(self.events.kind == EventKind.RUNTIME) & (self.events.correlation >= 0)]

    @cached_property
    def launch_order(self) -> tuple[Int64, Int64]:
        """Correlation and start of the launches, by correlation and then by start."""
        events = self.events
        which = np.flatnonzero((events.kind == EventKind.RUNTIME) & (events.correlation >= 0))
        ids, times = events.correlation[which], events.start[which]
        in_order = (ids[1:] > ids[:-1]).all()
        order = np.arange(len(ids)) if in_order else np.lexsort((times, ids))
        return ids[order], times[order]

    @cached_property
    def launch_keys(self) -> tuple[Int64, Int64]:
        """The starts of launches in order, and for each of `launch_order` its id and time as one number: the position
        of the first one with its id, then that of its start; without ids that are used again of no length."""
        ids, times = self.launch_order
        if not (ids[1:] == ids[:-1]).any():
            return times[:0], times[:0]
        ordered = np.sort(times)
        first = np.searchsorted(ids, ids)
        return ordered, first * (len(times) + 1) + np.searchsorted(ordered, times, side="right")

    @cached_property
    def annotations(self) -> Events:
        return self.of_kind(EventKind.ANNOTATION)

    @property
    def device_work(self) -> Events:
        return self.of_kind(*DEVICE_WORK)

    @property
    def on_device(self) -> bool:
        return bool(np.isin(self.events.kind, DEVICE_WORK).any())


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One profiled step of one rank; nanoseconds since the trace's origin."""

    number: int
    start: int
    end: int


def profiled_steps(trace: Trace) -> tuple[ProfiledStep, ...]:
    """The `ProfilerStep#n` annotations of a trace, by start time; empty if `profiler.step()` was never called."""
    numbers = {code: int(m.group(1)) for code, name in enumerate(trace.names) if (m := STEP.match(name))}
    if not numbers:
        return ()
    events = trace.events[(trace.events.kind == EventKind.ANNOTATION) & np.isin(trace.events.name, list(numbers))]
    found = [
        ProfiledStep(numbers[name], start, end)
        for name, start, end in zip(events.name.tolist(), events.start.tolist(), events.end.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda step: (step.start, step.number)))


@dataclass(frozen=True, slots=True)
class CallTree:
    """The events of one thread as a tree.

    `order` are positions in the given events, by start; `parent` positions in `order` (-1: none). A child that ends
    after its parent is cut there. `segments` are the times between two edges, `innermost` the innermost event of each
    (a position in `order`, -1: none).
    """

    order: Int32
    parent: Int32
    segments: Spans
    innermost: Int32

    def self_time(self) -> Int64:
        """Nanoseconds for which each event (in `order`) was the innermost."""
        sums = np.zeros(len(self.order) + 1, dtype=np.int64)
        np.add.at(sums, self.innermost, self.segments.end - self.segments.start)
        return sums[:-1]


TREE_PART = 20_000
"""Events of a call tree at a time. Those that do not nest are lists of Python, which take ten times the memory."""


def build_call_tree(events: Events | Spans) -> CallTree:
    """The tree of one thread's events, without events of zero duration. Only their times are used."""
    order = np.flatnonzero(events.end > events.start).astype(np.int32)
    order = order[np.lexsort((-events.end[order], events.start[order]))]
    start, end = events.start[order], events.end[order]
    del events  # the largest arrays here, if the caller has no other use for them
    parent = np.full(len(order), -1, dtype=np.int32)
    edge, innermost = np.empty(2 * len(order), dtype=np.int64), np.empty(2 * len(order), dtype=np.int32)
    for first, last in _separate_parts(start, end):
        of_part, edges_of_part = slice(first, last), slice(2 * first, 2 * last)
        parents, end[of_part] = _parents(start[of_part], end[of_part])
        parent[of_part] = np.where(parents >= 0, parents + first, -1)
        edge[edges_of_part], after = _edges(parents, start[of_part], end[of_part])
        innermost[edges_of_part] = np.where(after >= 0, after + first, -1)
    return CallTree(order, parent, Spans(edge[:-1], edge[1:]), innermost[:-1])


def _separate_parts(start: Int64, end: Int64) -> list[tuple[int, int]]:
    """Parts of events by start, of `TREE_PART` or more, such that all of a part end before the next one begins."""
    if not len(start):
        return []
    roots = np.flatnonzero(start[1:] >= np.maximum.accumulate(end)[:-1]) + 1
    wanted = np.arange(TREE_PART, len(start), TREE_PART)
    at = np.searchsorted(roots, wanted)
    cuts = np.unique(roots[at[at < len(roots)]]).tolist()
    return list(zip([0, *cuts], [*cuts, len(start)], strict=True))


def _parents(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """The parent of each event by start, -1 for none; and the ends, not after those of the parents."""
    # How many events are open at the start of each: those that began before, less those that ended.
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    by_depth = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    parent = np.full(len(start), -1, dtype=np.int64)
    for first, middle, last in zip(levels, levels[1:], levels[2:], strict=False):
        outer, inner = by_depth[first:middle], by_depth[middle:last]
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
    # So it is if events nest; the first one that ends after another one that is open ends after its parent.
    if (end <= np.where(parent >= 0, end[parent], end)).all():
        return parent, end
    return _parents_one_by_one(start.tolist(), end.tolist())


def _parents_one_by_one(starts: list[int], ends: list[int]) -> tuple[Int64, Int64]:
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
    return np.array(parent, dtype=np.int64), np.array(ends, dtype=np.int64)


def _edges(parent: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """The times at which events begin and end, in order, and the innermost event after each (-1: none)."""
    index = np.arange(len(start))
    times = np.concatenate((end, start))
    innermost_after = np.concatenate((parent, index))
    # At the same time, ends come first (inner before outer), then starts (outer before inner).
    tie = np.concatenate((-1 - index, index))
    edges = np.lexsort((tie, times))
    return times[edges], innermost_after[edges]
