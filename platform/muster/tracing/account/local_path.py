"""What each moment of one rank waited for: the part of a critical path between two collectives, or to a step's start.

A kernel starts when the last of these has happened: the host has launched it, the kernel before it on its stream has
ended, or a kernel of another stream that it waits for has ended. The host launches when it comes to it, or when the
synchronisation that it waited in has ended, and with it the kernels before. On the CPU, the host goes on when the
collective, send or receive that it waits for has ended. These also wait for other ranks: `critical_path` continues
there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import EventKind, Events, Mask, Trace, build_call_tree
from muster.tracing.read.spans import Int64, Spans, covered_within, groups
from muster.tracing.work.hta_breakdown import KernelType, launch_times
from muster.tracing.work.operator_stats import short_name
from muster.tracing.work.steps import StepTable
from muster.tracing.work.time_breakdown import CategorySpans, collective_name, communication_events
from muster.tracing.work.transfers import TransferTable, is_transfer
from muster.tracing.work.work_kinds import (
    IGNORED_ANNOTATION,
    NO_ANNOTATION,
    STEP_ANNOTATION,
    SYNCHRONISATION,
    device_work_types,
    matching_names,
    nested_events,
)

NONE = -1
SAME_STREAM_NS = 10_000  # a kernel that starts so soon after the one before it on its stream waited for that one
SAME_THREAD_NS = 50_000  # the same for collectives on a thread of gloo

Label = tuple[str, str]
"""Kind ("kernel", "copy", "collective", "communication", "operator", "host", "launch", "gap") and name."""
WAITING: Label = ("gap", "between kernels")
LAUNCHING: Label = ("launch", "from the call to the kernel")


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """The paths of one rank as trees, one for each step.

    Nodes are collectives (`collective`: the row in the rank's table), waits for transfers (`transfer`: the event in the
    rank's table), the beginnings of transfers (`posted`), ends of steps (`end_of_step`: the node of each step) and
    places where paths meet. A column has -1 for other nodes. The path from a node to its `parent` (-1: the start of
    the step) consists of the parts from `first_part` to that of the next node: nanoseconds (`part_ns`) of `labels`
    (`part_label`). It ends at the end of the parent, and begins at the start of a collective or of a wait, else at
    the end of the node.
    """

    labels: tuple[Label, ...]
    collective: Int64
    transfer: Int64
    posted: Int64
    parent: Int64
    first_part: Int64
    part_label: Int64
    part_ns: Int64
    end_of_step: Int64

    def parts(self, node: int) -> Iterator[tuple[Label, int]]:
        """The labels and nanoseconds from a node to its parent."""
        for part in range(int(self.first_part[node]), int(self.first_part[node + 1])):
            yield self.labels[self.part_label[part]], int(self.part_ns[part])


@dataclass(frozen=True, slots=True)
class _Graph:
    """The events of one step by end, and for each what it waited for.

    `before` is the position of an earlier event, or -1: the start of the step. Of the time between the two, the host
    needed [`host_start`, `host_end`). The last event is the end of the step.
    """

    start: Int64
    end: Int64
    label: list[Label]
    collective: Int64
    transfer: Int64
    posted: Int64
    before: Int64
    host_start: Int64
    host_end: Int64
    step_start: int


CollectiveRows = Mapping[tuple[int, int], int]
"""The row of the collective with each start and end."""
Rows = tuple[CollectiveRows, TransferTable]
HostLabels = Callable[[int, int], Iterator[tuple[Label, int]]]


def local_paths(trace: Trace, steps: StepTable, lanes: CategorySpans, rows: Rows) -> LocalPaths:
    """The paths of a trace with steps; `rows` are the collectives and transfers that other ranks take part in."""
    on_device = len(steps.work) > 0
    host = _host_labels(trace, with_operators=not on_device)
    graphs = _device_graphs(trace, steps, rows) if on_device else _host_graphs(trace, steps, lanes, rows)
    builder = _TreeBuilder()
    for graph in graphs:
        builder.add(graph, host)
    return builder.build()


def _device_graphs(trace: Trace, steps: StepTable, rows: Rows) -> Iterator[_Graph]:
    work, types = steps.work, device_work_types(trace, steps.work)
    launched = launch_times(trace, work)
    runtime = trace.of_kind(EventKind.RUNTIME)
    waits_for_transfers = rows[1].waits()
    waits = runtime[matching_names(trace, SYNCHRONISATION)[runtime.name]] if len(runtime) else runtime
    waits = waits[np.argsort(waits.end, kind="stable")]
    for i in range(len(steps)):
        window = steps.windows.start[i], steps.windows.end[i]
        here = np.flatnonzero((steps.work_step == i) & (work.end > window[0]))
        here = here[np.argsort(work.end[here], kind="stable")]
        events = work[here]
        start = np.append(np.maximum(events.start, window[0]), window[1])
        end = np.append(events.end, window[1])
        launch = np.append(launched[here], steps.annotated.end[i])
        begun = np.minimum(launch, start)
        before = np.minimum(np.searchsorted(events.end, start, side="right"), np.arange(len(end))) - 1
        before = _prefer_previous(before, start, end, np.append(events.thread, NONE), SAME_STREAM_NS)
        ready = np.where(before >= 0, end[before], window[0])
        by_host = begun > ready
        synced, sync_end = _last_synchronisation(waits, events.end, begun)
        synced = np.minimum(synced, np.arange(len(end)) - 1)
        host_start = np.where(by_host, np.where(synced >= 0, sync_end, window[0]), start)
        yield _Graph(
            start=start,
            end=end,
            label=_work_labels(trace, events, types[here]),
            collective=_rows_of(rows[0], events.start, events.end),
            transfer=(transfer := _rows_of(waits_for_transfers, events.start, events.end)),
            posted=transfer,
            before=np.where(by_host, synced, before),
            host_start=host_start,
            host_end=np.where(by_host, begun, start),
            step_start=int(window[0]),
        )


def _last_synchronisation(waits: Events, ends: Int64, times: Int64) -> tuple[Int64, Int64]:
    """For each time the last synchronisation that ended before it after it had waited for a kernel: the position of
    the kernel in `ends`, which are in order (-1: none), and the end of the synchronisation."""
    kernel = np.searchsorted(ends, waits.end, side="right") - 1
    waited = (kernel >= 0) & (ends[np.maximum(kernel, 0)] > waits.start) if len(ends) else kernel > 0
    kernel, wait_end = kernel[waited], waits.end[waited]
    at = np.searchsorted(wait_end, times, side="right") - 1
    if not len(kernel):
        return np.full(len(times), NONE, dtype=np.int64), times
    return np.where(at >= 0, kernel[np.maximum(at, 0)], NONE), wait_end[np.maximum(at, 0)]


def _prefer_previous(before: Int64, start: Int64, end: Int64, thread: Int64, within_ns: int) -> Int64:
    """The event before each one on its own thread, if it ended at most `within_ns` earlier, else as given."""
    found = before.copy()
    for same in groups(thread):
        same = same[np.argsort(start[same], kind="stable")]
        previous, gap = same[:-1], start[same[1:]] - end[same[:-1]]
        follows = (gap >= 0) & (gap <= within_ns) & (previous < same[1:])
        found[same[1:][follows]] = previous[follows]
    return found


def _work_labels(trace: Trace, events: Events, types: np.ndarray[tuple[int], np.dtype[np.int8]]) -> list[Label]:
    """The label of each event, and of the end of the step."""
    known: dict[tuple[int, int, int], Label] = {}
    labels: list[Label] = []
    for i, key in enumerate(zip(events.name.tolist(), events.collective.tolist(), types.tolist(), strict=True)):
        if key not in known:
            one = events[np.array([i])]
            name = (
                collective_name(trace, one) if key[2] == KernelType.COMMUNICATION else short_name(trace.names[key[0]])
            )
            kind = {KernelType.COMMUNICATION: "communication", KernelType.MEMORY: "copy"}.get(
                KernelType(key[2]), "kernel"
            )
            known[key] = (kind, name)
        labels.append(known[key])
    return [*labels, WAITING]


@dataclass(frozen=True, slots=True)
class _HostEvents:
    """What the host waits for on the CPU, and the instants at which transfers are posted, by end."""

    start: Int64
    end: Int64
    name: Int64
    thread: Int64
    transfer: Int64
    posted: Int64


def _host_events(trace: Trace, steps: StepTable, lanes: CategorySpans, transfers: TransferTable) -> _HostEvents:
    communication = communication_events(trace, steps.work)
    sent = is_transfer(trace, communication)
    # One that ends while the rank computes delays nothing.
    moment = Spans(communication.end - 1, communication.end)
    exposed = (communication.end > communication.start) & (covered_within(lanes.exposed, moment) > 0)
    events, apart = communication[exposed & ~sent], communication[sent]
    # Each transfer twice: the wait for it, and its beginning.
    number = _rows_of(transfers.events(), apart.start, apart.end)[:-1]
    waited = (
        np.flatnonzero((number != NONE) & (transfers.end > transfers.wait_start)[number]) if len(number) else number
    )
    known = np.flatnonzero(number != NONE)
    none = np.full(len(events), NONE, dtype=np.int64)
    columns = (
        (events.start, transfers.wait_start[number[waited]], apart.start[known]),
        (events.end, apart.end[waited], apart.start[known]),
        (events.name, apart.name[waited], apart.name[known]),
        (events.thread, apart.thread[waited], apart.thread[known]),
        (none, number[waited], np.full(len(known), NONE)),
        (none, np.full(len(waited), NONE), number[known]),
    )
    start, end, name, thread, transfer, posted = (np.concatenate(parts).astype(np.int64) for parts in columns)
    order = np.argsort(end, kind="stable")
    return _HostEvents(start[order], end[order], name[order], thread[order], transfer[order], posted[order])


def _host_graphs(trace: Trace, steps: StepTable, lanes: CategorySpans, rows: Rows) -> Iterator[_Graph]:
    """On the CPU the events are collectives and transfers; everything between them is the host."""
    events = _host_events(trace, steps, lanes, rows[1])
    for i in range(len(steps)):
        window = steps.windows.start[i], steps.windows.end[i]
        here = np.flatnonzero((events.start >= window[0]) & (events.end <= window[1]))
        start, end = np.append(events.start[here], window[1]), np.append(events.end[here], window[1])
        before = np.minimum(np.searchsorted(events.end, start, side="right"), np.arange(len(end))) - 1
        before = _prefer_previous(before, start, end, np.append(events.thread[here], NONE), SAME_THREAD_NS)
        yield _Graph(
            start=start,
            end=end,
            label=[*(("communication", trace.names[name]) for name in events.name[here].tolist()), WAITING],
            collective=_rows_of(rows[0], events.start[here], events.end[here]),
            transfer=np.append(events.transfer[here], NONE),
            posted=np.append(events.posted[here], NONE),
            before=before,
            host_start=np.where(before >= 0, end[before], window[0]),
            host_end=start,
            step_start=int(window[0]),
        )


def _rows_of(rows: Mapping[tuple[int, int], int], start: Int64, end: Int64) -> Int64:
    """The row of each event, -1 for others, and -1 for the end of the step."""
    found = [rows.get(times, NONE) for times in zip(start.tolist(), end.tolist(), strict=True)]
    return np.array([*found, NONE], dtype=np.int64)


def _host_labels(trace: Trace, *, with_operators: bool) -> HostLabels:
    """What the thread of the steps does: the innermost annotation, or operator, at each time."""
    events = nested_events(trace)
    ignored, steps = matching_names(trace, IGNORED_ANNOTATION), matching_names(trace, STEP_ANNOTATION)
    annotation = events.kind == EventKind.ANNOTATION
    keep: Mask = (annotation & ~ignored[events.name]) | (with_operators & ~annotation)
    step_threads = np.unique(events.thread[annotation & steps[events.name]]) if len(events) else ()
    events = events[keep & np.isin(events.thread, step_threads)]
    tree = build_call_tree(events)
    names = np.append(events.name[tree.order], NONE)[tree.innermost]
    operator = np.append(events.kind[tree.order] == EventKind.CPU_OP, False)[tree.innermost]

    def label(at: int) -> Label:
        code = int(names[at])
        if code == NONE or steps[code]:
            return ("host", NO_ANNOTATION)
        return ("operator" if operator[at] else "host", trace.names[code])

    def labels(start: int, end: int) -> Iterator[tuple[Label, int]]:
        at, time = int(np.searchsorted(tree.segments.end, start, side="right")), start
        while time < end:
            inside = at < len(tree.segments) and tree.segments.start[at] <= time
            until = int(tree.segments.end[at]) if inside else end
            yield (label(at) if inside else ("host", NO_ANNOTATION)), min(until, end) - time
            time, at = min(until, end), at + 1

    return labels


class _TreeBuilder:
    """Reduces the graph of each step to collectives, the end of the step, and the places where their paths meet."""

    def __init__(self) -> None:
        self._labels: dict[Label, int] = {}
        self._collective: list[int] = []
        self._transfer: list[int] = []
        self._posted: list[int] = []
        self._parent: list[int] = []
        self._first_part: list[int] = [0]
        self._part_label: list[int] = []
        self._part_ns: list[int] = []
        self._end_of_step: list[int] = []

    def add(self, graph: _Graph, host: HostLabels) -> None:
        before = graph.before.tolist()
        node = ((graph.collective >= 0) | (graph.transfer >= 0) | (graph.posted >= 0)).tolist()
        node[-1] = True
        used = list(node)
        for i in reversed(range(len(before))):
            if used[i] and (earlier := before[i]) >= 0:
                node[earlier] = node[earlier] or used[earlier]
                used[earlier] = True
        numbers: dict[int, int] = {}
        for i in range(len(before)):
            if node[i]:
                numbers[i] = len(self._parent)
                self._add_node(graph, i, node, numbers, host)
        self._end_of_step.append(len(self._parent) - 1)

    def _add_node(self, graph: _Graph, i: int, node: list[bool], numbers: dict[int, int], host: HostLabels) -> None:
        sums: defaultdict[Label, int] = defaultdict(int)
        if graph.collective[i] < 0 and graph.transfer[i] < 0:
            sums[graph.label[i]] += int(graph.end[i] - graph.start[i])
        at = i
        while True:
            earlier = int(graph.before[at])
            begin = int(graph.end[earlier]) if earlier >= 0 else graph.step_start
            host_start, host_end = int(graph.host_start[at]), int(graph.host_end[at])
            sums[WAITING] += host_start - begin
            sums[LAUNCHING] += int(graph.start[at]) - host_end
            for label, ns in host(host_start, host_end):
                sums[label] += ns
            if earlier < 0 or node[earlier]:
                break
            sums[graph.label[earlier]] += int(graph.end[earlier] - graph.start[earlier])
            at = earlier
        for label, ns in sums.items():
            if ns:
                self._part_label.append(self._labels.setdefault(label, len(self._labels)))
                self._part_ns.append(ns)
        self._first_part.append(len(self._part_ns))
        self._collective.append(int(graph.collective[i]))
        self._transfer.append(int(graph.transfer[i]))
        self._posted.append(int(graph.posted[i]))
        self._parent.append(numbers[earlier] if earlier >= 0 else NONE)

    def build(self) -> LocalPaths:
        """All steps together."""
        return LocalPaths(
            tuple(self._labels),
            *(
                np.array(column, dtype=np.int64)
                for column in (
                    self._collective,
                    self._transfer,
                    self._posted,
                    self._parent,
                    self._first_part,
                    self._part_label,
                    self._part_ns,
                    self._end_of_step,
                )
            ),
        )
