"""A rank's time by kind of work: every instant belongs to exactly one kind.

On a device the kind is that of the running kernels. On the CPU (gloo) it is that of the innermost operator of each
thread and of its callers: an `aten::mul_` inside `Optimizer.step` is optimizer work. There communication runs on its
own threads, and an instant counts as communication only if no thread computes (exposed communication).

The timeline of a step has the utilisation by each kind of work in a fixed number of time slots: a step has thousands of
kernels, and a chart a few hundred pixels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from muster.tracing.events import EventKind, Events, Mask, ProfiledStep, Trace, build_call_tree
from muster.tracing.hta_breakdown import KernelType, kernel_types, launch_times, overlap
from muster.tracing.spans import EMPTY, Spans, clip, concatenate, coverage, union


class TimeCategory(IntEnum):
    """Kinds of work, by precedence: of several that run at once, the first one counts. OTHER is the remaining time."""

    COMPUTE = 0
    OPTIMIZER = 1
    COMMUNICATION = 2
    MEMORY = 3
    DATA = 4
    OTHER = 5


COMMUNICATION_NAME = re.compile(
    r"(c10d|_c10d_functional|c10d_functional|gloo|nccl|mpi|ucc|hccl|xccl):|record_param_comms|nccl", re.IGNORECASE
)
# torch's own annotations, and names that training loops (also Muster's trainer) use with record_function.
AUTOGRAD_NAME = re.compile(r"autograd::engine::evaluate_function")
OPTIMIZER_NAME = re.compile(r"Optimizer\.(step|zero_grad)#|(optimizer|clip)$")
DATA_NAME = re.compile(r"enumerate\(DataLoader\)#|data$")
# Operators that, like annotations, only enclose others: time directly in them is Python.
FRAME_NAME = re.compile(
    r"PythonSubclass$|autograd::engine::evaluate_function|.*BackwardFunctionBackward$|Torch-Compiled Region"
    r"|CompiledFunction(Backward)?$"
)
# Inductor's annotation around the kernels of a compiled graph, which have no events of their own on the CPU.
COMPILED_GRAPH = re.compile(r"## Call CompiledFxGraph (\w+)")
NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
NO_CATEGORY = -1


@dataclass(frozen=True, slots=True)
class CategorySpans:
    """Disjoint spans per kind of work of one rank. Kinds may overlap; `time_breakdown` applies the precedence."""

    by_category: dict[TimeCategory, Spans]

    def __getitem__(self, kind: TimeCategory) -> Spans:
        return self.by_category.get(kind, EMPTY)

    @property
    def computing(self) -> Spans:
        """Compute and optimizer: the work that communication can overlap with."""
        return union(concatenate((self[TimeCategory.COMPUTE], self[TimeCategory.OPTIMIZER])))


@dataclass(frozen=True, slots=True)
class ExposedCollective:
    """A collective and the nanoseconds in which it ran while nothing computed."""

    name: str
    calls: int
    exposed_ns: int


def category_spans(trace: Trace, work: Events) -> CategorySpans:
    """The spans of the device if `work` (device work) is not empty, else of the CPU."""
    return _device_category_spans(trace, work) if len(work) else _cpu_category_spans(trace)


def time_breakdown(lanes: CategorySpans, start: int, end: int) -> dict[TimeCategory, int]:
    """Nanoseconds of [start, end) for each kind of work; they sum to end - start."""
    kinds = [kind for kind in TimeCategory if kind is not TimeCategory.OTHER]
    states = coverage([clip(lanes[kind], start, end) for kind in kinds]).by_state()
    found = dict.fromkeys(TimeCategory, 0)
    for state, ns in states.items():
        if state:
            found[TimeCategory((state & -state).bit_length() - 1)] += ns
    found[TimeCategory.OTHER] = end - start - sum(found.values())
    return found


def exposed_communication(lanes: CategorySpans, start: int, end: int) -> Spans:
    """Communication in [start, end) while nothing computes."""
    cut = coverage((clip(lanes[TimeCategory.COMMUNICATION], start, end), lanes.computing))
    return cut.spans(cut.active == 1)


def exposed_collectives(trace: Trace, events: Events, exposed: Spans) -> tuple[ExposedCollective, ...]:
    """The exposed communication per collective, longest first; `events` are the communication events."""
    found: dict[str, tuple[int, int]] = {}
    for code in np.unique(events.name):
        here = events[events.name == code]
        cut = coverage((here.spans, exposed))
        name = _collective_name(trace, here)
        calls, ns = found.get(name, (0, 0))
        found[name] = (calls + len(here), ns + cut.total(cut.active == 3))
    rows = [ExposedCollective(name, calls, ns) for name, (calls, ns) in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.name)))


def communication_events(trace: Trace, work: Events) -> Events:
    """Communication events: kernels on a device, annotations of the backend's threads on the CPU."""
    if len(work):
        return work[kernel_types(trace, work) == KernelType.COMMUNICATION]
    annotations = trace.annotations
    carrying = _matching_names(trace, re.compile(r"(gloo|mpi|ucc):"))
    return annotations[carrying[annotations.name]] if len(annotations) else annotations


def _collective_name(trace: Trace, events: Events) -> str:
    named = events.collective[events.collective >= 0]
    if len(named):
        return str(trace.names[named[0]])
    name = str(trace.names[events.name[0]]).split("(")[0]
    kernel = NCCL_KERNEL.match(name)
    return f"nccl:{kernel[1]}" if kernel else name


def _matching_names(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    return np.array([pattern.match(name) is not None for name in trace.names], dtype=bool)


def _device_category_spans(trace: Trace, work: Events) -> CategorySpans:
    types = kernel_types(trace, work)
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
    """Operators and annotations; an optimizer's annotation starts where the closure that it called has ended.

    `optimizer.step(closure)` (used by Lightning, required by LBFGS) runs forward and backward inside the optimizer's
    annotation. Forward passes have no annotation, but autograd does: everything up to the end of the last autograd
    event, and of the call around it, is the closure. If a closure is called several times, the optimizer's work in
    between counts as closure.
    """
    events = trace.of_kind(EventKind.CPU_OP, EventKind.ANNOTATION)
    annotation = events.kind == EventKind.ANNOTATION
    optimizers = np.flatnonzero(annotation & _matching_names(trace, OPTIMIZER_NAME)[events.name]) if len(events) else ()
    backward = events[_matching_names(trace, AUTOGRAD_NAME)[events.name]] if len(events) else events
    backward = backward[np.argsort(backward.start, kind="stable")]
    start = events.start.copy()
    for i in optimizers:
        first, stop = np.searchsorted(backward.start, (events.start[i], events.end[i]))
        if first == stop:
            continue
        ended = int(backward.end[first:stop].max())
        around = (events.thread == events.thread[i]) & (events.start > events.start[i]) & (events.start < ended)
        calls = events.end[around & (events.end > ended)]
        start[i] = min(int(calls.max(initial=ended)), int(events.end[i]))
    return replace(events, start=start)


def _annotation_spans(trace: Trace, pattern: re.Pattern[str], events: Events) -> Spans:
    """The union of the annotations among `events` that match."""
    wanted = (events.kind == EventKind.ANNOTATION) & _matching_names(trace, pattern)[events.name] if len(events) else ()
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
    for row in np.unique(events.thread):
        here = events[events.thread == row]
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


def traced_window(trace: Trace, work: Events, steps: Sequence[ProfiledStep]) -> tuple[int, int]:
    """The analysed time range: from a device's first to last work, else the profiled steps, else all events."""
    if not len(work) and steps:
        return min(step.start for step in steps), max(step.end for step in steps)
    spans = work.spans if len(work) else trace.events.spans
    return (int(spans.start.min()), int(spans.end.max())) if len(spans) else (0, 0)


SLOTS = 400
LEVELS = 4  # resolution of a slot: quarters


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step of one rank. `busy_levels` maps a kind of work to `SLOTS` digits 0..4: quarters of each slot covered."""

    step: int
    duration_s: float
    communication_s: float
    overlapped_s: float
    busy_levels: dict[str, str]


def step_timelines(
    trace: Trace, work: Events, lanes: CategorySpans, steps: tuple[ProfiledStep, ...]
) -> tuple[StepTimeline, ...]:
    """The timeline of every step with work in it."""
    return tuple(
        _step_timeline(step, lanes, window) for step in steps if (window := _window(trace, work, step)) is not None
    )


def _window(trace: Trace, work: Events, step: ProfiledStep) -> tuple[int, int] | None:
    """The time range of the step's work; on a device it is that of the work launched in the step."""
    if not len(work):
        return (step.start, step.end) if step.end > step.start else None
    launched = launch_times(trace, work)
    of_step = work[(launched >= step.start) & (launched < step.end) & (work.end > work.start)]
    return (int(of_step.start.min()), int(of_step.end.max())) if len(of_step) else None


def _step_timeline(step: ProfiledStep, lanes: CategorySpans, window: tuple[int, int]) -> StepTimeline:
    start, end = window
    both = overlap(clip(lanes[TimeCategory.COMMUNICATION], start, end), lanes.computing)
    levels = {
        kind.name.lower(): slot_levels(lanes[kind], start, end)
        for kind in TimeCategory
        if kind is not TimeCategory.OTHER
    }
    return StepTimeline(
        step=step.number,
        duration_s=(end - start) / 1e9,
        communication_s=both.communication_ns / 1e9,
        overlapped_s=both.overlapped_ns / 1e9,
        busy_levels={kind: digits for kind, digits in levels.items() if digits.strip("0")},
    )


def slot_levels(spans: Spans, start: int, end: int) -> str:
    """Quarters covered of each of `SLOTS` equal parts of [start, end); above 2% at least 1."""
    inside = clip(spans, start, end)
    if not len(inside) or end <= start:
        return "0" * SLOTS
    # The covered time up to t is piecewise linear in t, with knots at the edges of the spans.
    edges = np.column_stack((inside.start, inside.end)).ravel()
    lengths = inside.end - inside.start
    covered = np.column_stack((np.cumsum(lengths) - lengths, np.cumsum(lengths))).ravel()
    bounds = np.linspace(start, end, SLOTS + 1)
    parts = np.diff(np.interp(bounds, edges, covered)) / ((end - start) / SLOTS)
    quarters = np.where(parts > 0.02, np.maximum(np.rint(parts * LEVELS), 1), 0).astype(int)
    return "".join(map(str, np.minimum(quarters, LEVELS)))
