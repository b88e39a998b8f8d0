"""The account of one rank: its steps divided without overlap and without remainder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.kernel_classes import KERNEL_CLASSES, kernel_classes
from muster.tracing.account.kinds import HOST, Label, Spent
from muster.tracing.account.lanes import Lane, combine, sums_within
from muster.tracing.account.step_slots import step_slots
from muster.tracing.read.events import EventKind, Events, Int32, Mask, Trace, build_call_tree
from muster.tracing.read.spans import EMPTY, Int64, Spans, concatenate, groups, union
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.steps import StepTable
from muster.tracing.work.time_breakdown import CategorySpans
from muster.tracing.work.work_kinds import (
    CHECKPOINT_NAME,
    COMMUNICATION_NAME,
    DATA_NAME,
    FRAME_NAME,
    IGNORED_ANNOTATION,
    POINT_TO_POINT_NAME,
    STEP_ANNOTATION,
    TimeCategory,
    device_work_types,
    is_phase,
    matching_names,
)

BLOCKED_NS = 1_000_000
BLOCKED_IN_FRAME_NS = 5_000_000
CPU_WORK_NS = 100_000
ALLOCATION = re.compile(
    r"(cuda|hip)(Malloc|Free)(Async|Host)?$|(cuda|hip)Host(Alloc|Free|Register)$|cuMem(Create|Map|Unmap|SetAccess|Release)"
)
SYNCHRONISATION = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize|(cuda|hip)Memcpy$")
COMPILATION = re.compile(r".*\(dynamo_timed\)$|TorchDynamo|_compile\.")
GARBAGE_NAME = re.compile(r"\bgc\b|garbage", re.IGNORECASE)
COPY_OPERATOR = re.compile(r"aten::(to|_to_copy|copy_|cpu|cuda|pin_memory|_pin_memory)$")


@dataclass(frozen=True, slots=True)
class Amounts:
    """Parallel arrays: in which step how many nanoseconds of a label are spent."""

    step: Int64
    label: Int64
    ns: Int64


@dataclass(frozen=True, slots=True)
class RankAccount:
    """One rank: the amounts of its steps, in their order, which sum to their durations; `host` are the kinds of `HOST`
    within the steps' annotations, also while the device works, and its pauses by the operator after each. `labels` are
    the labels by position, `syncs` the synchronising calls of each step, `compute` what the device computes, by the
    position in `KERNEL_CLASSES`, `slots` what the rank does in each step (`step_slots`)."""

    labels: tuple[Label, ...]
    steps: Amounts
    host: Amounts
    syncs: Int64
    compute: Amounts
    slots: tuple[str, ...] = ()


def rank_account(trace: Trace, steps: StepTable, lanes: CategorySpans) -> RankAccount:
    """The account of a trace with steps."""
    codes = _Labels(trace)
    sources = [*_work_lanes(trace, steps, lanes, codes)]
    start, end = int(steps.windows.start.min()), int(steps.windows.end.max())
    on_device = len(steps.work) > 0
    host = [*_host_lanes(trace, codes, on_device=on_device)]
    first, last = min(start, int(steps.annotated.start.min())), max(end, int(steps.annotated.end.max()))
    working = _Working.of(trace, on_device=on_device)
    host.append(_blocked(working, host, codes, (first, last)))
    sources += host
    syncs = _synchronisations(trace)
    if on_device:
        sources.append(Lane.of_spans(_after_syncs(trace, steps, syncs), codes.of(Spent.SYNC)))
    lane = combine(sources, start, end, codes.of(Spent.UNKNOWN))
    count = len(codes)
    of_steps = sums_within(lane, steps.windows, count)
    named = [one.select((one.code >= codes.of(HOST[0])) & (one.code < codes.of(Spent.BLOCKED))) for one in host]
    if not on_device:  # a host that waits in a collective runs no operator either
        named = [lane.select(lane.code < codes.of(Spent.BLOCKED))]
    host_lane = combine([*named, working.pauses(codes, (first, last))], first, last, codes.of(Spent.UNKNOWN))
    of_host = sums_within(host_lane, steps.annotated, count)
    labels, order = codes.final(np.unique(np.concatenate((of_steps[1], of_host[1]))))
    at = np.searchsorted(steps.windows.start, syncs.start, side="right") - 1
    inside = at >= 0
    return RankAccount(
        labels=labels,
        steps=Amounts(of_steps[0], order[of_steps[1]], of_steps[2]),
        host=Amounts(of_host[0], order[of_host[1]], of_host[2]),
        syncs=np.bincount(at[inside], minlength=len(steps)),
        compute=_by_class(trace, steps),
        slots=step_slots(codes.kinds(lane), steps.windows, len(Spent)),
    )


def _by_class(trace: Trace, steps: StepTable) -> Amounts:
    kernels = steps.work[device_work_types(trace, steps.work) == KernelType.COMPUTE] if len(steps.work) else steps.work
    found, rest = kernel_classes(trace, kernels), len(KERNEL_CLASSES)
    lanes = [Lane.of_spans(kernels.spans[found == number], number) for number in range(rest)]
    start, end = int(steps.windows.start.min()), int(steps.windows.end.max())
    step, number, ns = sums_within(combine(lanes, start, end, rest), steps.windows, rest + 1)
    computes = number < rest
    return Amounts(step[computes], number[computes], ns[computes])


class _Labels:
    """Numbers labels so that a kind that counts first has the smaller numbers."""

    def __init__(self, trace: Trace) -> None:
        self._stride = len(trace.names) + 1
        self._names = trace.names

    def __len__(self) -> int:
        return (max(Spent) + 1) * self._stride

    def of(self, spent: Spent, name: int = -1) -> int:
        """The number of a label; `name` is a position in the trace's names."""
        return int(spent) * self._stride + name + 1

    def kinds(self, lane: Lane) -> Lane:
        """The kinds of numbered labels, without their places."""
        return Lane(lane.start, lane.end, (lane.code // self._stride).astype(np.int32))

    def final(self, used: Int64) -> tuple[tuple[Label, ...], Int64]:
        """The labels of the used numbers, and by number the position of its label."""
        labels: dict[Label, int] = {}
        order = np.empty(len(self), dtype=np.int64)
        for code in used.tolist():
            spent, name = divmod(code, self._stride)
            label = Label(Spent(spent), self._names[name - 1] if name else "")
            order[code] = labels.setdefault(label, len(labels))
        return tuple(labels), order


def _work_lanes(trace: Trace, steps: StepTable, lanes: CategorySpans, codes: _Labels) -> Iterator[Lane]:
    """Compute, collectives and copies."""
    yield Lane.of_spans(lanes.computing, codes.of(Spent.COMPUTE))
    yield Lane.of_spans(lanes[TimeCategory.COMMUNICATION], codes.of(Spent.COLLECTIVE))
    work = steps.work
    if len(work):
        copies = work[device_work_types(trace, work) == KernelType.MEMORY]
        for same in groups(copies.name) if len(copies) else ():
            yield Lane.of_spans(copies.spans[same], codes.of(Spent.COPY, int(copies.name[same[0]])))
        yield from _copying_operators(trace, work, codes)


def _copying_operators(trace: Trace, work: Events, codes: _Labels) -> Iterator[Lane]:
    """Operators that wait for a copy from or to pageable memory."""
    pageable = np.array(["Pageable" in name for name in trace.names], dtype=bool)
    copies = work[(work.kind == EventKind.MEMCPY) & pageable[work.name] & (work.duration >= 100_000)]
    if not len(copies):
        return
    runtime = trace.launches
    name_of = dict(zip(copies.correlation.tolist(), copies.name.tolist(), strict=True))
    calls = runtime[np.isin(runtime.correlation, copies.correlation)]
    operators = trace.of_kind(EventKind.CPU_OP)
    operators = operators[matching_names(trace, COPY_OPERATOR)[operators.name]]
    found: dict[int, list[tuple[int, int]]] = {}
    for thread in np.unique(calls.thread).tolist():
        here = operators[operators.thread == thread]
        here = here[np.argsort(here.start, kind="stable")]
        longest = np.maximum.accumulate(here.end) if len(here) else here.end
        of_thread = calls[calls.thread == thread]
        for start, correlation in zip(of_thread.start.tolist(), of_thread.correlation.tolist(), strict=True):
            at = int(np.searchsorted(longest, start, side="right"))  # the first, so the outermost, that is still open
            if at < len(here) and here.start[at] <= start:
                found.setdefault(name_of[correlation], []).append((int(here.start[at]), int(here.end[at])))
    for name, spans in found.items():
        times = np.array(spans, dtype=np.int64)
        yield Lane.of_spans(Spans(times[:, 0], times[:, 1]), codes.of(Spent.COPY, name))


def _host_lanes(trace: Trace, codes: _Labels, *, on_device: bool) -> Iterator[Lane]:
    """What each thread does: the innermost specific annotation, else an operator, else a phase."""
    names = trace.names
    annotations = trace.annotations
    annotation_names = set(np.unique(annotations.name).tolist()) if len(annotations) else set()
    kind_of_annotation = np.full(len(names), -1, dtype=np.int64)
    for code in annotation_names:
        kind_of_annotation[code] = _annotation_kind(names[code])
    allocates, waits = matching_names(trace, ALLOCATION), matching_names(trace, SYNCHRONISATION)
    communicates = matching_names(trace, COMMUNICATION_NAME)
    sent = matching_names(trace, POINT_TO_POINT_NAME)
    frames, compiles = matching_names(trace, FRAME_NAME), matching_names(trace, COMPILATION)
    events = trace.events
    keep = np.isin(events.kind, (EventKind.CPU_OP, EventKind.ANNOTATION, EventKind.RUNTIME)) & ~sent[events.name]
    if not on_device:
        keep &= events.kind != EventKind.RUNTIME
    kept = np.flatnonzero(keep).astype(np.int32)
    del keep

    def lane_of(here: Int32) -> Lane:
        """Of the events of one thread; what it needs, a few times their size, is freed after each."""
        tree = build_call_tree(events.spans[here])
        here = here[tree.order]
        kinds, codes_here = events.kind[here], events.name[here]
        own, own_name = (np.full(len(codes_here), -1, dtype=np.int32) for _ in range(2))
        marks = kinds == EventKind.ANNOTATION
        own[marks] = kind_of_annotation[codes_here[marks]]
        own_name[marks] = codes_here[marks]
        operators = (kinds == EventKind.CPU_OP) & ~frames[codes_here]
        own[operators] = np.where(compiles[codes_here[operators]], Spent.COMPILE, Spent.OPERATOR)
        own_name[operators] = codes_here[operators]
        calls = kinds == EventKind.RUNTIME
        own[calls] = np.where(
            allocates[codes_here[calls]],
            Spent.ALLOCATOR,
            np.where(waits[codes_here[calls]], Spent.SYNC, Spent.OPERATOR),
        )
        own[communicates[codes_here]] = Spent.OPERATOR
        if on_device and calls.any():
            works = np.flatnonzero(operators & (own == Spent.OPERATOR) & ~communicates[codes_here])
            works = works[_without_calls(events.spans[here[works]], events.start[here[calls]])]
            own[works] = Spent.PREPROCESS
        found, place = _inherit(own, own_name, tree.parent)
        # After the last one there is the code of no event.
        code = np.append(np.where(found >= 0, found * (len(names) + 1) + place + 1, -1), np.int32(-1))[tree.innermost]
        return Lane.of_segments(tree.segments, code)

    for of_thread in groups(events.thread[kept]):
        yield lane_of(kept[of_thread])


@dataclass(frozen=True, slots=True)
class _Working:
    """When any thread is in an operator or a call: without the frames of autograd, and with them. `found` are the
    positions of the operators and calls in `events`."""

    busy: Spans
    with_frames: Spans
    events: Events
    found: Int32

    @classmethod
    def of(cls, trace: Trace, *, on_device: bool) -> _Working:
        events = trace.events
        frames, sent = matching_names(trace, FRAME_NAME), matching_names(trace, POINT_TO_POINT_NAME)
        working = np.isin(events.kind, (EventKind.CPU_OP, EventKind.RUNTIME)) & ~sent[events.name]
        if not on_device:
            working |= (events.kind == EventKind.ANNOTATION) & sent[events.name]
        found = np.flatnonzero(working & ~frames[events.name]).astype(np.int32)
        busy = union(events.spans[found])
        return cls(busy, union(concatenate([busy, events.spans[working & frames[events.name]]])), events, found)

    def pauses(self, codes: _Labels, window: tuple[int, int]) -> Lane:
        """The gaps, by the operator or call that ends each."""
        gaps = _gaps(self.busy, window, BLOCKED_NS)
        ending = self.found[np.isin(self.events.start[self.found], gaps.end)]
        ending = ending[np.argsort(self.events.start[ending], kind="stable")]
        after = np.searchsorted(self.events.start[ending], gaps.end)
        place = np.append(self.events.name[ending], -1)[after]
        return Lane(gaps.start, gaps.end, (codes.of(Spent.BLOCKED) + place + 1).astype(np.int32))


def _blocked(working: _Working, host: list[Lane], codes: _Labels, window: tuple[int, int]) -> Lane:
    """Gaps of all threads; the place is the phase that is open there.

    Within a node of autograd the thread also works between operators: only a longer gap is one there.
    """
    longer = _gaps(working.busy, window, BLOCKED_IN_FRAME_NS)
    gaps = union(concatenate([_gaps(working.with_frames, window, BLOCKED_NS), longer]))
    start, end = gaps.start, gaps.end
    code = np.full(len(start), codes.of(Spent.BLOCKED), dtype=np.int32)
    for lane in host:
        at = lane.at(start + BLOCKED_NS // 2)
        phase = (at >= codes.of(Spent.PYTHON)) & (at < codes.of(Spent.UNKNOWN))
        code[phase] = at[phase] - codes.of(Spent.PYTHON) + codes.of(Spent.BLOCKED)
    return Lane(start, end, code)


def _gaps(busy: Spans, window: tuple[int, int], at_least_ns: int) -> Spans:
    """The times within a window that disjoint spans in order leave, of at least a length."""
    edges = np.concatenate([[window[0]], np.column_stack((busy.start, busy.end)).ravel(), [window[1]]])
    start, end = np.maximum(edges[::2], window[0]), np.minimum(edges[1::2], window[1])
    long = end - start >= at_least_ns
    return Spans(start[long], end[long])


def _without_calls(operators: Spans, calls: Int64) -> Int64:
    """Which operators are long and call nothing of the runtime; `calls` are the starts of calls, in order."""
    long = np.flatnonzero(operators.end - operators.start >= CPU_WORK_NS)
    inside = np.searchsorted(calls, operators.end[long]) > np.searchsorted(calls, operators.start[long])
    return long[~inside]


def _inherit(own: Int32, name: Int32, parent: Int32) -> tuple[Int32, Int32]:
    """The kind and place of each event: that of the innermost one around it which is specific, else its own.

    An operator within an annotation that is not a phase counts for the annotation; a phase, for what is in it.
    """
    index = np.arange(len(own), dtype=np.int32)
    outer = np.maximum(parent, 0)

    def climb(stop: Mask) -> Int32:
        """From each event outwards to the first at which `stop` is true, or to the outermost one."""
        at = np.where(stop | (parent < 0), index, parent)
        while not np.array_equal(further := at[at], at):
            at = further
        return at

    if not len(own):
        return own, name
    specific = np.isin(own, HOST)
    around, known = climb(specific), climb(own >= 0)
    outermost = climb((parent < 0) | (own[outer] != Spent.OPERATOR))
    found = np.where(own == -1, own[known], own)
    place = np.where(own == -1, name[known], name)
    named = (found == Spent.OPERATOR) & (own[outermost] == Spent.OPERATOR) & (name[outermost] >= 0)
    place = np.where(named, name[outermost], place)
    within = specific[around]
    kind, where = np.where(within, own[around], found), np.where(within, name[around], place)
    prepares = named & (kind == Spent.DATA)
    kind[prepares] = Spent.PREPROCESS
    return kind, np.where(prepares, name[outermost], where)


def _annotation_kind(name: str) -> int:
    if STEP_ANNOTATION.match(name) or IGNORED_ANNOTATION.match(name):
        return -1
    if DATA_NAME.match(name):
        return Spent.DATA
    if COMPILATION.match(name):
        return Spent.COMPILE
    if GARBAGE_NAME.search(name):
        return Spent.GARBAGE
    if CHECKPOINT_NAME.search(name):
        return Spent.CHECKPOINT
    return Spent.PYTHON if is_phase(name) else Spent.ANNOTATION


def _synchronisations(trace: Trace) -> Spans:
    """The calls in which the host waits for the device, of at least a microsecond, by end."""
    events = trace.events
    found = events.spans[(events.kind == EventKind.RUNTIME) & matching_names(trace, SYNCHRONISATION)[events.name]]
    return found[np.argsort(found.end, kind="stable")]


def _after_syncs(trace: Trace, steps: StepTable, syncs: Spans) -> Spans:
    """From the end of each call that waited for the last work to the beginning of the next: idle because of it."""
    busy = union(steps.work.spans)
    if not len(syncs) or not len(busy):
        return EMPTY
    done = np.searchsorted(busy.end, syncs.end, side="right") - 1  # the last work that had ended
    known = (done >= 0) & (done + 1 < len(busy.start))
    waited = known & (busy.end[np.maximum(done, 0)] > syncs.start)
    # Nothing ran when the call returned.
    nxt = busy.start[np.minimum(done + 1, len(busy.start) - 1)]
    idle = waited & (nxt > syncs.end)
    return union(Spans(busy.end[np.maximum(done, 0)][idle], nxt[idle]))
