"""The steps of a rank: one definition of step and window, for all ranks.

A step begins where its annotation `ProfilerStep#n` begins on the host, so it includes what precedes its first kernel,
such as a slow data loader. It ends when the annotation has ended and the device has finished the work launched in it.
The host runs ahead of the device, so a step's annotation may begin before the device has finished the step before:
then the step begins there, and no instant belongs to two steps. So does the first step, after what the device had been
given before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.read.events import DEVICE_WORK, EventKind, Events, Trace
from muster.tracing.read.spans import Int64, Spans
from muster.tracing.work.hta_breakdown import launch_times
from muster.tracing.work.step_marks import WHOLE_TRACE, StepMarks, step_marks, whole_trace

NO_STEP = -1
MAX_UNKNOWN = 0.5
"""The part of the time of device work whose launch is not known, above which it cannot be given to steps."""
UNKNOWN = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps of one trace, by start. `annotated` are the host annotations, `windows` the steps.

    Nanoseconds since the trace's origin. `work` is the device work of the trace up to the end of the last step;
    `work_step` is the position of each one's step (`NO_STEP`: launched outside of all steps, or its launch is unknown).
    """

    numbers: Int64
    annotated: Spans
    windows: Spans
    work: Events
    work_step: Int64
    source: str = ""
    """How the steps are known if not by the profiler's annotations, and why, as of `StepMarks`."""

    def __len__(self) -> int:
        return len(self.numbers)

    def step_of(self, host_times: Int64) -> Int64:
        """The position of the step in whose annotation a host time lies, else `NO_STEP`."""
        return _positions(self.annotated, host_times)


def step_table(trace: Trace) -> StepTable:
    """The steps of a trace, of a truncated one the complete steps."""
    marks = step_marks(trace)
    work = _without_earlier(trace)
    launched = launch_times(trace, work)
    if not marks.source and (problem := _without_steps(work, launched, marks.spans)):
        marks = whole_trace(trace, problem)
    found = _table(marks, work, launched)
    return _complete(trace, found) if trace.damage is not None and trace.damage.end else found


def _table(marks: StepMarks, work: Events, launched: Int64) -> StepTable:
    annotated = marks.spans
    known = launched > UNKNOWN
    if len(annotated):
        # What was launched after the last step, such as the profiler's own copies, is not part of the run.
        keep = ~known | (launched <= annotated.end.max())
        work, launched, known = work[keep], launched[keep], known[keep]
    work_step = np.where(known, _positions(annotated, launched), NO_STEP)
    if marks.source.endswith(WHOLE_TRACE):
        work_step = np.where(known | (work.start >= annotated.start.min()), 0, NO_STEP) if len(work) else work_step
    done = annotated.end.copy()
    np.maximum.at(done, work_step[work_step >= 0], work.end[work_step >= 0])
    end = np.maximum.accumulate(done)
    start = annotated.start.copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    if len(annotated) and (work_step == 0).any():
        first = work.start[work_step == 0].min()
        earlier = (work_step == NO_STEP) & (work.start < first)
        start[0] = min(max(start[0], work.end[earlier].max(initial=start[0])), first)
    return StepTable(marks.numbers, annotated, Spans(start, end), work, work_step, marks.source)


def _without_earlier(trace: Trace) -> Events:
    """The device work of a trace without what ended before the host's first event: the profiler may return kernels of
    an earlier capture."""
    work, kinds = trace.device_work, trace.events.kind
    on_host = np.isin(kinds, (EventKind.CPU_OP, EventKind.ANNOTATION, EventKind.RUNTIME))
    return work[work.end >= trace.events.start[on_host].min()] if len(work) and on_host.any() else work


def _without_steps(work: Events, launched: Int64, annotated: Spans) -> str:
    """Why device work cannot be given to steps; empty if it can."""
    known = launched > UNKNOWN
    if len(annotated) < 2 or not len(work):
        return ""
    inside = work.end > annotated.start.min()
    total, unknown = int(work.duration[inside].sum()), int(work.duration[inside & ~known].sum())
    if total and unknown > MAX_UNKNOWN * total:
        part = f"the launches of {100 * unknown / total:.0f}% of the time of its kernels are not in the trace"
        return f"{part}, so they cannot be given to steps"
    of_steps = known & (_positions(annotated, launched) >= 0)
    if of_steps.any() and work.start[of_steps].min() >= annotated.end.max():
        return "all kernels begin after the last step, as after graph replays, and cannot be given to steps"
    return ""


def _complete(trace: Trace, steps: StepTable) -> StepTable:
    """The steps that end before the events of the truncated part begin: the profiler writes the events of the host
    first, then those of the device, each about by time."""
    events = trace.events
    on_device = np.flatnonzero(np.isin(events.kind, DEVICE_WORK))
    launches = np.flatnonzero(events.kind == EventKind.RUNTIME)
    until = int(events.start[on_device[-1]]) if len(on_device) else int(events.start[-1]) if len(events) else 0
    if not len(on_device) and (len(launches) or trace.device is not None):
        until = -1  # the device's part is lost
    count = int((steps.windows.end <= until).sum())
    whole = slice(0, count)
    work_step = np.where(steps.work_step < count, steps.work_step, NO_STEP)
    return StepTable(
        steps.numbers[whole],
        Spans(steps.annotated.start[whole], steps.annotated.end[whole]),
        Spans(steps.windows.start[whole], steps.windows.end[whole]),
        steps.work,
        work_step,
        steps.source,
    )


def _positions(spans: Spans, times: Int64) -> Int64:
    """The position of the last span that begins before each time, if it has not ended then."""
    if not len(spans):
        return np.full(len(times), NO_STEP, dtype=np.int64)
    at = np.searchsorted(spans.start, times, side="right") - 1
    return np.where((at >= 0) & (times <= spans.end[np.maximum(at, 0)]), at, NO_STEP)
