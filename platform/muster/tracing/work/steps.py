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

from muster.tracing.read.events import Events, ProfiledStep, Trace, profiled_steps
from muster.tracing.read.spans import Int64, Spans
from muster.tracing.work.hta_breakdown import launch_times

NO_STEP = -1


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

    def __len__(self) -> int:
        return len(self.numbers)

    def step_of(self, host_times: Int64) -> Int64:
        """The position of the step in whose annotation a host time lies, else `NO_STEP`."""
        return _positions(self.annotated, host_times)


def step_table(trace: Trace) -> StepTable:
    """The steps of a trace; without annotations there are none, and `work` is all device work."""
    work = trace.device_work
    steps = _distinct(profiled_steps(trace))
    annotated = Spans(
        np.array([step.start for step in steps], dtype=np.int64), np.array([step.end for step in steps], dtype=np.int64)
    )
    numbers = np.array([step.number for step in steps], dtype=np.int64)
    launched = launch_times(trace, work)
    known = launched > np.iinfo(np.int64).min
    if len(steps):
        # What was launched after the last step, such as the profiler's own copies, is not part of the run.
        keep = ~known | (launched <= annotated.end.max())
        work, launched, known = work[keep], launched[keep], known[keep]
    work_step = np.where(known, _positions(annotated, launched), NO_STEP)
    done = annotated.end.copy()
    np.maximum.at(done, work_step[work_step >= 0], work.end[work_step >= 0])
    end = np.maximum.accumulate(done)
    start = annotated.start.copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    if len(steps) and (work_step == 0).any():
        first = work.start[work_step == 0].min()
        earlier = (work_step == NO_STEP) & (work.start < first)
        start[0] = min(max(start[0], work.end[earlier].max(initial=start[0])), first)
    return StepTable(numbers, annotated, Spans(start, end), work, work_step)


def _positions(spans: Spans, times: Int64) -> Int64:
    """The position of the last span that begins before each time, if it has not ended then."""
    if not len(spans):
        return np.full(len(times), NO_STEP, dtype=np.int64)
    at = np.searchsorted(spans.start, times, side="right") - 1
    return np.where((at >= 0) & (times <= spans.end[np.maximum(at, 0)]), at, NO_STEP)


def _distinct(steps: tuple[ProfiledStep, ...]) -> list[ProfiledStep]:
    """One step per number, by start: several threads may annotate the same step."""
    found: dict[int, ProfiledStep] = {}
    for step in steps:
        seen = found.get(step.number, step)
        found[step.number] = ProfiledStep(step.number, min(seen.start, step.start), max(seen.end, step.end))
    return sorted(found.values(), key=lambda step: (step.start, step.number))
