"""A rank's time by kind of work: every instant belongs to exactly one kind.

On a device the kind is that of the running kernels. On the CPU (gloo) it is that of the innermost operator of each
thread and of its callers: an `aten::mul_` inside `Optimizer.step` is optimizer work. There communication runs on its
own threads, and an instant counts as communication only if no thread computes (exposed communication).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import EventKind, Events, Mask, Trace, build_call_tree
from muster.tracing.read.spans import (
    EMPTY,
    Int64,
    Spans,
    concatenate,
    coverage,
    covered_within,
    groups,
    intersect,
    union,
)
from muster.tracing.work.hta_breakdown import KernelType, launch_times
from muster.tracing.work.steps import StepTable
from muster.tracing.work.work_kinds import (
    AUTOGRAD_NAME,
    COMMUNICATION_NAME,
    COMPILED_GRAPH,
    DATA_NAME,
    FRAME_NAME,
    OPTIMIZER_NAME,
    POINT_TO_POINT_NAME,
    TimeCategory,
    device_work_types,
    matching_names,
    nested_events,
)

NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
NO_CATEGORY = -1


@dataclass(frozen=True, slots=True)
class CategorySpans:
    """Disjoint spans in order per kind of work of one rank. Kinds may overlap; `exclusive` applies the precedence."""

    by_category: dict[TimeCategory, Spans]

    def __getitem__(self, kind: TimeCategory) -> Spans:
        return self.by_category.get(kind, EMPTY)

    @property
    def computing(self) -> Spans:
        """Compute and optimizer: the work that communication can overlap with."""
        return union(concatenate((self[TimeCategory.COMPUTE], self[TimeCategory.OPTIMIZER])))

    @property
    def overlapped(self) -> Spans:
        """Communication while something computes."""
        return intersect(self[TimeCategory.COMMUNICATION], self.computing)

    @property
    def exposed(self) -> Spans:
        """Communication while nothing computes."""
        cut = coverage((self[TimeCategory.COMMUNICATION], self.computing))
        return cut.spans(cut.active == 1)

    def exclusive(self) -> dict[TimeCategory, Spans]:
        """For each kind but OTHER the time that counts for it: disjoint over all kinds."""
        kinds = [kind for kind in TimeCategory if kind is not TimeCategory.OTHER]
        cut = coverage([self[kind] for kind in kinds])
        first = cut.active & -cut.active  # the lowest bit: the kind that takes precedence
        return {kind: cut.spans(first == 1 << i) for i, kind in enumerate(kinds)}

    @staticmethod
    def covered_s(spans: Spans, windows: Spans) -> NDArray[np.float64]:
        """Seconds of each window covered by disjoint spans in order."""
        return covered_within(spans, windows) / 1e9


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step of one rank, in seconds; `time_by_category_s` sums to `duration_s`."""

    step: int
    duration_s: float
    time_by_category_s: dict[str, float]
    communication_s: float
    overlapped_s: float


@dataclass(frozen=True, slots=True)
class ExposedCollective:
    """A collective and the nanoseconds in which it ran while nothing computed."""

    name: str
    calls: int
    exposed_ns: int


def category_spans(trace: Trace, steps: StepTable) -> CategorySpans:
    """The spans of the device if the trace has device work, else of the CPU."""
    return _device_category_spans(trace, steps.work) if len(steps.work) else _cpu_category_spans(trace)


def step_times(lanes: CategorySpans, numbers: Int64, windows: Spans) -> tuple[StepTime, ...]:
    """The time by kind of work of each window; `numbers` are their steps."""
    by_kind = {kind: CategorySpans.covered_s(spans, windows) for kind, spans in lanes.exclusive().items()}
    duration = (windows.end - windows.start) / 1e9
    by_kind[TimeCategory.OTHER] = np.maximum(duration - sum(by_kind.values()), 0.0)
    communication = CategorySpans.covered_s(lanes[TimeCategory.COMMUNICATION], windows)
    overlapped = CategorySpans.covered_s(lanes.overlapped, windows)
    return tuple(
        StepTime(
            step=int(number),
            duration_s=float(duration[i]),
            time_by_category_s={kind.name.lower(): float(seconds[i]) for kind, seconds in by_kind.items()},
            communication_s=float(communication[i]),
            overlapped_s=float(overlapped[i]),
        )
        for i, number in enumerate(numbers.tolist())
    )


def exposed_collectives(trace: Trace, events: Events, exposed: Spans) -> tuple[ExposedCollective, ...]:
    """The exposed communication per collective, longest first; `events` are the communication events."""
    found: dict[str, tuple[int, int]] = {}
    for same_name in groups(events.name):
        here = events[same_name]
        name = collective_name(trace, here)
        calls, ns = found.get(name, (0, 0))
        found[name] = (calls + len(here), ns + int(covered_within(exposed, union(here.spans)).sum()))
    rows = [ExposedCollective(name, calls, ns) for name, (calls, ns) in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.name)))


def communication_events(trace: Trace, work: Events) -> Events:
    """Communication events: kernels on a device, annotations of the backend's threads on the CPU."""
    if len(work):
        return work[device_work_types(trace, work) == KernelType.COMMUNICATION]
    annotations = trace.annotations
    carrying = matching_names(trace, re.compile(r"(gloo|mpi|ucc):"))
    return annotations[carrying[annotations.name]] if len(annotations) else annotations


def collective_name(trace: Trace, events: Events) -> str:
    """What to call the collective of these events of one name: as recorded, else by its kernel, `nccl:AllReduce`."""
    named = events.collective[events.collective >= 0]
    if len(named):
        return str(trace.names[named[0]])
    name = str(trace.names[events.name[0]]).split("(")[0]
    kernel = NCCL_KERNEL.match(name)
    return f"nccl:{kernel[1]}" if kernel else name


def _device_category_spans(trace: Trace, work: Events) -> CategorySpans:
    types = device_work_types(trace, work)
    spans = work.spans
    computing = types == KernelType.COMPUTE
    optimizer = computing & _launched_in(trace, work, _annotation_spans(trace, OPTIMIZER_NAME, trim_closures(trace)))
    return CategorySpans(
        {
            TimeCategory.COMPUTE: union(spans[computing & ~optimizer]),
            TimeCategory.OPTIMIZER: union(spans[optimizer]),
            TimeCategory.COMMUNICATION: union(spans[types == KernelType.COMMUNICATION]),
            TimeCategory.MEMORY: union(spans[types == KernelType.MEMORY]),
            # Data loading on the CPU delays the device only while it is idle: it has the lowest precedence.
            TimeCategory.DATA: union(_annotation_spans(trace, DATA_NAME, trace.annotations)),
        }
    )


def trim_closures(trace: Trace) -> Events:
    """Nested operators and annotations; an optimizer's annotation starts where the closure that it called has ended.

    `optimizer.step(closure)` (used by Lightning, required by LBFGS) runs forward and backward inside the optimizer's
    annotation. Forward passes have no annotation, but autograd does: everything up to the end of the last autograd
    event, and of the call around it, is the closure. If a closure is called several times, the optimizer's work in
    between counts as closure.
    """
    events = nested_events(trace)
    annotation = events.kind == EventKind.ANNOTATION
    optimizers = np.flatnonzero(annotation & matching_names(trace, OPTIMIZER_NAME)[events.name]) if len(events) else ()
    if not len(optimizers):
        return events
    spans = events.spans
    backward = spans[matching_names(trace, AUTOGRAD_NAME)[events.name]]
    backward = backward[np.argsort(backward.start, kind="stable")]
    start = events.start.copy()
    calls_of = {
        int(events.thread[of_thread[0]]): spans[of_thread[np.argsort(events.start[of_thread], kind="stable")]]
        for of_thread in groups(events.thread)
    }
    for i in optimizers:
        first, stop = np.searchsorted(backward.start, (events.start[i], events.end[i]))
        if first == stop:
            continue
        ended = int(backward.end[first:stop].max())
        calls_here = calls_of[int(events.thread[i])]
        around = slice(*np.searchsorted(calls_here.start, (events.start[i] + 1, ended)))
        calls = calls_here.end[around]
        calls = calls[calls > ended]
        start[i] = min(int(calls.max(initial=ended)), int(events.end[i]))
    return replace(events, start=start)


def _annotation_spans(trace: Trace, pattern: re.Pattern[str], events: Events) -> Spans:
    """The union of the annotations among `events` that match."""
    wanted = (events.kind == EventKind.ANNOTATION) & matching_names(trace, pattern)[events.name] if len(events) else ()
    return union(events.spans[np.flatnonzero(wanted)])


def _launched_in(trace: Trace, work: Events, spans: Spans) -> Mask:
    """A mask of the device work launched within one of the disjoint spans."""
    if not len(spans):
        return np.zeros(len(work), dtype=bool)
    launched = launch_times(trace, work)
    at = np.searchsorted(spans.start, launched, side="right") - 1
    inside: Mask = (at >= 0) & (launched < spans.end[np.maximum(at, 0)])
    return inside


def _cpu_category_spans(trace: Trace) -> CategorySpans:
    own = _name_categories(trace)
    events = trim_closures(trace)
    parts: dict[TimeCategory, list[Spans]] = {kind: [] for kind in TimeCategory}
    parts[TimeCategory.COMMUNICATION].append(_annotation_spans(trace, POINT_TO_POINT_NAME, trace.annotations))
    for of_thread in groups(events.thread):
        here = events[of_thread]
        tree = build_call_tree(here)
        kinds = _inherit_categories(own[here.name[tree.order]], tree.parent.tolist())
        running = np.where(tree.innermost >= 0, kinds[tree.innermost], NO_CATEGORY) if len(kinds) else tree.innermost
        for kind in TimeCategory:
            parts[kind].append(tree.segments[running == kind])
    return CategorySpans(
        {kind: union(concatenate(found)) for kind, found in parts.items() if kind is not TimeCategory.OTHER}
    )


def _name_categories(trace: Trace) -> NDArray[np.int64]:
    """The category of each name of the trace, without its context."""
    annotation_names = set(np.unique(trace.annotations.name).tolist())
    return np.array(
        [_name_category(name, annotation=code in annotation_names) for code, name in enumerate(trace.names)],
        dtype=np.int64,
    )


def _name_category(name: str, *, annotation: bool) -> int:
    if COMMUNICATION_NAME.match(name):
        return TimeCategory.COMMUNICATION
    if annotation and OPTIMIZER_NAME.match(name):
        return TimeCategory.OPTIMIZER
    if annotation and DATA_NAME.match(name):
        return TimeCategory.DATA
    encloses = (annotation and not COMPILED_GRAPH.match(name)) or FRAME_NAME.match(name)
    return NO_CATEGORY if encloses else TimeCategory.COMPUTE


def _inherit_categories(own: NDArray[np.int64], parent: list[int]) -> NDArray[np.int64]:
    """Events inside communication, optimizer and data loading get that category, except communication itself."""
    inherited = (TimeCategory.OPTIMIZER, TimeCategory.DATA, TimeCategory.COMMUNICATION)
    kinds: list[int] = own.tolist()
    for i, outer in enumerate(parent):
        if outer >= 0 and kinds[i] != TimeCategory.COMMUNICATION and kinds[outer] in inherited:
            kinds[i] = kinds[outer]
    return np.array(kinds, dtype=np.int64)
