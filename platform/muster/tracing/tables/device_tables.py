"""Tables of one trace's device work: kernels, annotations, launches, lengths of launch queues, sequences of kernels.

Their definitions are those of HolisticTraceAnalysis (HTA) 0.5.0: `get_gpu_kernel_breakdown`,
`get_gpu_user_annotation_breakdown`, `get_cuda_kernel_launch_stats`, `get_queue_length_summary`,
`get_time_spent_blocked_on_full_queue`, `get_frequent_cuda_kernel_sequences`, but all launching calls count:
HTA leaves out cooperative launches. HTA computes them from `round_to_microseconds(trace)` and
`select_device_work(trace, include_last_step=False)`; on other input they have full resolution and all steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import EventKind, Events, Trace, build_call_tree
from muster.tracing.read.spans import Int64, coverage, groups
from muster.tracing.work.hta_breakdown import UNTYPED, KernelType, before_last_step, kernel_types, last_launches
from muster.tracing.work.work_kinds import device_work_types, nested_events

FULL_QUEUE = 1024
"""Launches that CUDA accepts on a stream before it blocks the host."""


@dataclass(frozen=True, slots=True)
class DurationRow:
    """All events of one name, in nanoseconds; `stddev_ns` is that of a sample (None: one event). `kind` is "compute",
    "communication", "memory" or "annotation"."""

    name: str
    kind: str
    calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    stddev_ns: float | None


def kernel_table(trace: Trace, work: Events, *, hta: bool = False) -> tuple[DurationRow, ...]:
    """Kernels, copies and memsets by name, longest total first; `hta`: with HTA's kinds, by names."""
    kinds = np.array([kind.name.lower() for kind in KernelType])
    work, types = _typed(trace, work, hta)
    return _durations(trace, work, kinds[types].tolist())


def annotation_table(trace: Trace, *, hta: bool = False) -> tuple[DurationRow, ...]:
    """Annotations on the device by name, longest total first: each lasts from the first to the last kernel launched in
    it. Empty if the profiler wrote none. `hta`: without those that begin in the last step."""
    marks = trace.of_kind(EventKind.DEVICE_ANNOTATION)
    marks = before_last_step(trace, marks) if hta else marks
    return _durations(trace, marks, ["annotation"] * len(marks))


@dataclass(frozen=True, slots=True)
class AnnotatedKernel:
    """One kernel, copy or memset, and the annotation on its stream that it belongs to (empty: none)."""

    name: str
    annotation: str
    stream: int
    start_ns: int
    duration_ns: int


def annotated_kernels(trace: Trace, work: Events, *, hta: bool = False) -> tuple[AnnotatedKernel, ...]:
    """All device work in the order of its start, each with the innermost annotation on its stream: the shortest one
    that overlaps it. `hta`: without annotations that begin in the last step, and none for work without a length."""
    work = work[np.argsort(work.start, kind="stable")]
    annotation = np.full(len(work), -1, dtype=np.int64)
    marks = trace.of_kind(EventKind.DEVICE_ANNOTATION)
    marks = before_last_step(trace, marks) if hta else marks
    marks = marks[np.argsort(-marks.duration, kind="stable")]  # shorter ones replace those around them
    for of_stream in groups(work.thread):
        start, end = work.start[of_stream], work.end[of_stream]
        reached = np.maximum.accumulate(end)
        here = marks[marks.thread == work.thread[of_stream[0]]]
        for name, begin, until in zip(here.name, here.start, here.end, strict=True):
            first, last = np.searchsorted(reached, begin, side="right"), np.searchsorted(start, until, side="left")
            inside = of_stream[first:last]
            overlaps = end[first:last] > begin
            overlaps &= (end[first:last] > start[first:last]) | (not hta)
            annotation[inside[overlaps]] = name
    columns = (work.name, annotation, work.stream, work.start, work.duration)
    return tuple(
        AnnotatedKernel(trace.names[name], trace.names[mark] if mark >= 0 else "", stream, begin, length)
        for name, mark, stream, begin, length in zip(*(column.tolist() for column in columns), strict=True)
    )


@dataclass(frozen=True, slots=True)
class KernelTypeRow:
    """The time in which exactly these kinds of work ran; `share_pct` is that of the time in which any ran."""

    kinds: tuple[str, ...]
    time_ns: int
    share_pct: float


def kernel_type_table(trace: Trace, work: Events, *, hta: bool = False) -> tuple[KernelTypeRow, ...]:
    """Each combination of computation, communication and memory work that ran at once, the longest first."""
    work, types = _typed(trace, work, hta)
    covered = coverage([work.spans[types == kind] for kind in KernelType])
    times = {state: covered.total(covered.active == state) for state in np.unique(covered.active).tolist() if state}
    busy = sum(times.values())
    rows = [
        KernelTypeRow(tuple(k.name.lower() for k in KernelType if state & (1 << k)), time, 100 * time / busy)
        for state, time in times.items()
        if time
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kinds)))


def _typed(trace: Trace, work: Events, hta: bool) -> tuple[Events, NDArray[np.int8]]:
    """The work that has a type, and the types."""
    types = kernel_types(trace, work) if hta else device_work_types(trace, work)
    known = types != UNTYPED
    return work[known], types[known]


def _durations(trace: Trace, events: Events, kinds: list[str]) -> tuple[DurationRow, ...]:
    rows = []
    for same in groups(events.name):
        ns = events.duration[same]
        rows.append(
            DurationRow(
                name=trace.names[events.name[same[0]]],
                kind=kinds[same[0]],
                calls=len(ns),
                total_ns=int(ns.sum()),
                mean_ns=float(ns.mean()),
                min_ns=int(ns.min()),
                max_ns=int(ns.max()),
                stddev_ns=float(ns.std(ddof=1)) if len(ns) > 1 else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """Launches with their device work: parallel columns, in nanoseconds. `delay_ns` is from the return of the call to
    the start of the work, at least 0."""

    correlation: Int64
    call_ns: Int64
    work_ns: Int64
    delay_ns: Int64

    def __len__(self) -> int:
        return len(self.correlation)


def launch_table(trace: Trace, work: Events) -> LaunchTable:
    """The launches of `work`, in its order; work whose launch is unknown is left out."""
    calls, found = launches_of(trace, work)
    work = work[found]
    delay = np.maximum(work.start - calls.end, 0)
    return LaunchTable(work.correlation, calls.duration, work.duration, delay)


def launches_of(trace: Trace, work: Events) -> tuple[Events, Int64]:
    """The calls that launched device work, and the positions of that work."""
    launches = trace.launches
    launches = launches[np.lexsort((launches.start, launches.correlation))]
    if not len(launches):
        return launches, np.empty(0, dtype=np.int64)
    at = last_launches(trace, work)
    found = np.flatnonzero(launches.correlation[at] == work.correlation).astype(np.int64)
    return launches[at[found]], found


@dataclass(frozen=True, slots=True)
class QueueLength:
    """How much work is launched and not begun on a stream, over its changes (two for each launch).

    `quartiles` are the 25th, 50th and 75th percentile; `full_ns` is the time at `full` or more.
    """

    stream: int
    changes: int
    mean: float
    stddev: float
    minimum: int
    quartiles: tuple[float, float, float]
    maximum: int
    full_ns: int


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """The length of a stream's queue after each change: nanoseconds since the trace's origin, in order. `thread` is the
    stream's position in the trace's threads."""

    stream: int
    thread: int
    time: Int64
    length: Int64


def queue_changes(trace: Trace, work: Events, *, hta: bool = False) -> tuple[QueueChanges, ...]:
    """One for each stream with launched work, by stream. Lengths are at least 0, although some work seems to
    begin before its launch, since the clocks of host and device differ a little; `hta` keeps the negative ones."""
    calls, found = launches_of(trace, work)
    work = work[found]
    rows = []
    for same in groups(work.stream):
        times = np.concatenate((calls.start[same], work.start[same]))
        order = np.argsort(times, kind="stable")  # launches first
        length = np.cumsum(np.repeat((1, -1), len(same))[order])
        if not hta:
            length = np.maximum(length, 0)
        first = same[0]
        rows.append(QueueChanges(int(work.stream[first]), int(work.thread[first]), times[order], length))
    return tuple(rows)


def queue_lengths(trace: Trace, work: Events, *, full: int = FULL_QUEUE, hta: bool = False) -> tuple[QueueLength, ...]:
    """One for each stream with launched work, by stream; `hta` as in `queue_changes`."""
    rows = []
    for changes in queue_changes(trace, work, hta=hta):
        length = changes.length
        durations = np.diff(changes.time, append=changes.time[-1])
        low, middle, high = np.quantile(length, (0.25, 0.5, 0.75)).tolist()
        rows.append(
            QueueLength(
                stream=changes.stream,
                changes=len(length),
                mean=float(length.mean()),
                stddev=float(length.std(ddof=1)),
                minimum=int(length.min()),
                quartiles=(low, middle, high),
                maximum=int(length.max()),
                full_ns=int(durations[length >= full].sum()),
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class KernelSequence:
    """The kernels that calls of an operator launched, by start: how many calls launched exactly these, the sum of the
    kernels' and of the operators' nanoseconds."""

    operator: str
    kernels: tuple[str, ...]
    calls: int
    kernels_ns: int
    operator_ns: int


def kernel_sequences(
    trace: Trace, work: Events, operator: str, *, min_kernels: int = 3, hta: bool = False
) -> tuple[KernelSequence, ...]:
    """Of the outermost operators whose name contains `operator`, the most frequent sequences first.

    `hta`: only of those with the fewest events around them.
    """
    calls, launched_work = launches_of(trace, work)
    work = work[launched_work]
    wanted = np.array([operator in name for name in trace.names], dtype=bool)
    sums: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0, 0])
    nested = nested_events(trace)
    found = []
    for of_thread in groups(nested.thread):
        tree = build_call_tree(nested.spans[of_thread])
        events = nested[of_thread[tree.order]]
        inside = wanted[events.name]
        outer, depth = inside.copy(), np.zeros(len(events), dtype=np.int64)
        for i, parent in enumerate(tree.parent.tolist()):  # parents come first
            if parent >= 0:
                depth[i] = depth[parent] + 1
                if inside[parent]:
                    inside[i], outer[i] = True, False
        found.append((events, outer, depth))
    least = min((int(depth[outer].min()) for _, outer, depth in found if outer.any()), default=0)
    for events, outer, depth in found:
        launched = np.flatnonzero(calls.thread == events.thread[0]) if len(events) else np.empty(0, dtype=np.int64)
        launched = launched[np.argsort(calls.start[launched], kind="stable")]
        begins = calls.start[launched]
        for i in np.flatnonzero(outer & (depth == least) if hta else outer).tolist():
            first, last = np.searchsorted(begins, (events.start[i], events.end[i])).tolist()
            selected = launched[first:last]
            if len(selected) >= min_kernels:
                selected = selected[np.argsort(work.start[selected], kind="stable")]
                names = tuple(trace.names[code] for code in work.name[selected].tolist())
                total = sums[trace.names[events.name[i]], names]
                total[0] += 1
                total[1] += int(work.duration[selected].sum())
                total[2] += int(events.end[i] - events.start[i])
    rows = [KernelSequence(name, kernels, *totals) for (name, kernels), totals in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.calls, row.operator, row.kernels)))
