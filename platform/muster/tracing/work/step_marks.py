"""The steps of a trace on the host: the profiler's annotations, else what recurs in each step, else the whole trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import EventKind, Events, ProfiledStep, Trace, profiled_steps
from muster.tracing.read.spans import Int64, Spans
from muster.tracing.work.work_kinds import IGNORED_ANNOTATION, matching_names

OPTIMIZER = re.compile(r"Optimizer\.step#")
BATCH = re.compile(r"enumerate\(DataLoader\)")
WHOLE_TRACE = "the whole trace counts as one step"
MIN_CALLS = 3
"""Of an annotation that marks steps."""
MAX_OPTIMIZERS = 4
"""That a step may call in turn."""
MIN_COVERED = 0.2
"""The part of the host's time that such an annotation takes."""
_HOST = (EventKind.CPU_OP, EventKind.ANNOTATION, EventKind.RUNTIME)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Steps on the host, by start, nanoseconds since the trace's origin. `source` says how they are known; it is empty
    for the profiler's own annotations, and ends with `WHOLE_TRACE` if there is nothing that divides the trace."""

    numbers: Int64
    spans: Spans
    source: str = ""


def step_marks(trace: Trace) -> StepMarks:
    """The steps of a trace; none only if it has no events of the host or the device."""
    annotated = _outermost(profiled_steps(trace))
    if annotated:
        numbers = np.array([step.number for step in annotated], dtype=np.int64)
        return StepMarks(numbers, _spans([(step.start, step.end) for step in annotated]))
    for found, what in (
        (_between_ends(trace), "a step is from one end of Optimizer.step to the next"),
        (_from_starts(trace, BATCH), "a step begins with each batch of the DataLoader"),
        _from_recurring(trace),
    ):
        if len(found) > 1:
            return StepMarks(np.arange(len(found)), found, f"no ProfilerStep: {what}")
    return whole_trace(trace, "no ProfilerStep")


def whole_trace(trace: Trace, reason: str) -> StepMarks:
    """One step, from the first to the last event of the host, or without any of the device."""
    spans = _host_span(trace)
    events = trace.device_work
    if not len(spans) and len(events):
        spans = _spans([(int(events.start.min()), int(events.end.max()))])
    return StepMarks(np.arange(len(spans)), spans, f"{reason}: {WHOLE_TRACE}")


def _spans(pairs: Sequence[tuple[int, int]]) -> Spans:
    times = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Spans(times[:, 0], times[:, 1])


def _host_span(trace: Trace) -> Spans:
    """From the first to the last event of the host; empty without any."""
    events = trace.events
    on_host = np.isin(events.kind, _HOST)
    return _spans([(int(events.start[on_host].min()), int(events.end[on_host].max()))] if on_host.any() else [])


def _outermost(steps: Sequence[ProfiledStep]) -> list[ProfiledStep]:
    """One step per number, by start, without empty ones and those within others: several threads may annotate the
    same step, and so may several profilers."""
    found: dict[int, ProfiledStep] = {}
    for step in steps:
        seen = found.get(step.number, step)
        found[step.number] = ProfiledStep(step.number, min(seen.start, step.start), max(seen.end, step.end))
    kept: list[ProfiledStep] = []
    for step in sorted(found.values(), key=lambda step: (step.start, -step.end, step.number)):
        if step.end > step.start and not (kept and step.end <= kept[-1].end):
            kept.append(step)
    return kept


def _between_ends(trace: Trace) -> Spans:
    """From the first event of the host to the first end of the optimizer, and from each end to the next."""
    calls = _calls(trace, OPTIMIZER)
    counts = np.bincount(calls.name) if len(calls) else np.empty(0, dtype=np.int64)
    several = np.flatnonzero(counts > 1)
    if not len(several):
        return _spans([])
    calls = calls[calls.name == several[np.argmin(counts[several])]]
    calls = calls[np.argsort(calls.end, kind="stable")]
    operators = np.sort(trace.events.start[trace.events.kind == EventKind.CPU_OP])
    sizes = np.searchsorted(operators, calls.end) - np.searchsorted(operators, calls.start)
    period = _period(sizes)
    ends = calls.end[period - 1 :: period]
    return Spans(np.concatenate((_host_span(trace).start, ends[:-1])), ends)


def _period(sizes: Int64) -> int:
    """After how many calls the same numbers of operators recur: a step may update several models, as that of a GAN."""
    possible = range(1, min(MAX_OPTIMIZERS, len(sizes) // 2) + 1)
    return next((period for period in possible if (sizes[period:] == sizes[:-period]).all()), 1)


def _from_starts(trace: Trace, pattern: re.Pattern[str]) -> Spans:
    return _until_next(trace, _calls(trace, pattern))


def _until_next(trace: Trace, calls: Events) -> Spans:
    """From each call to the next, and from the last to the end of the host's events, if that is no fragment: a last
    call may find that there is no further batch."""
    start = np.sort(calls.start)
    if len(start) < 2:
        return _spans([])
    end = np.append(start[1:], _host_span(trace).end)
    operators = np.sort(trace.events.start[trace.events.kind == EventKind.CPU_OP])
    count = np.diff(np.searchsorted(operators, np.append(start, end[-1])))
    whole = len(start) - int(count[-1] < np.median(count[:-1]) / 2)
    return Spans(start[:whole], end[:whole])


def _from_recurring(trace: Trace) -> tuple[Spans, str]:
    """From one call to the next of the annotation that takes most of the host's time; numbers in names do not count."""
    annotations = trace.annotations
    annotations = annotations[~matching_names(trace, IGNORED_ANNOTATION)[annotations.name]]
    host = _host_span(trace)
    labels = {code: _DIGITS.sub("#", trace.names[code]) for code in np.unique(annotations.name).tolist()}
    best, longest, name = annotations, MIN_COVERED * float((host.end - host.start).sum()), ""
    for label in dict.fromkeys(labels.values()):
        calls = annotations[np.isin(annotations.name, [code for code, other in labels.items() if other == label])]
        if len(calls) >= MIN_CALLS and float(calls.duration.sum()) > longest:
            best, longest, name = calls, float(calls.duration.sum()), label
    return (_until_next(trace, best) if name else _spans([])), f"a step begins with each annotation {name!r}"


def _calls(trace: Trace, pattern: re.Pattern[str]) -> Events:
    annotations = trace.annotations
    return annotations[matching_names(trace, pattern)[annotations.name]] if len(annotations) else annotations
