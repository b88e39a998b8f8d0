"""How long pipeline ranks wait in forward and backward, beside the ideal of their schedule.

Muster's trainer writes its schedule into the traces, and the phase is its annotation around the micro-batches, up to
the end of the device's work launched in it. For other programs the phase lasts from the first to the last work of a
step that is not the optimizer's, and the micro-batches are what the first stage sends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.formatting import format_percent
from muster.tracing.read.events import PipelineSchedule, Trace
from muster.tracing.read.spans import Int64, Spans, covered_within
from muster.tracing.work.hta_breakdown import launch_times
from muster.tracing.work.steps import StepTable
from muster.tracing.work.time_breakdown import CategorySpans
from muster.tracing.work.work_kinds import TimeCategory, matching_names

PHASE = re.compile(r"forward and backward$")


@dataclass(frozen=True, slots=True)
class PipelinePhase:
    """Forward and backward of one rank per step, in milliseconds: how long it lasts, and how long the rank computes.
    `schedule` is None if the trace does not name it."""

    schedule: PipelineSchedule | None
    phase_ms: NDArray[np.float64]
    compute_ms: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PipelineBubble:
    """The share of forward and backward, on its longest rank, in which the mean rank does not compute; `ideal` is that
    of the schedule. Medians over the steps; `phase_ms` is the time of the longest rank."""

    schedule: str
    ranks: int
    micro_batches: int
    bubble: float
    ideal: float
    phase_ms: float

    @property
    def ideal_of_twice(self) -> float:
        """Of all schedules: with b for each rank's waits and w for its work in a step, b / (w + b) and b / (2w + b)."""
        return self.ideal / (2 - self.ideal)


def pipeline_phase(
    trace: Trace, steps: StepTable, lanes: CategorySpans, *, has_transfers: bool
) -> PipelinePhase | None:
    """The phase in the steps of a trace; None if a step has none, or the trace neither a schedule nor transfers."""
    phases = _annotated(trace, steps) if trace.pipeline is not None else None
    if phases is None and has_transfers:
        phases = _worked(steps.windows, lanes[TimeCategory.COMPUTE])
    if phases is None:
        return None
    compute = covered_within(lanes[TimeCategory.COMPUTE], phases)
    return PipelinePhase(trace.pipeline, (phases.end - phases.start) / 1e6, compute / 1e6)


def _annotated(trace: Trace, steps: StepTable) -> Spans | None:
    """By the trainer's annotations, one in each step."""
    annotations = trace.annotations
    phases = annotations[matching_names(trace, PHASE)[annotations.name]] if len(annotations) else annotations
    step = steps.step_of(phases.start)
    phases, step = phases[step >= 0], step[step >= 0]
    if sorted(step.tolist()) != list(range(len(steps))):
        return None
    phases = phases[np.argsort(step, kind="stable")]
    start = np.maximum(phases.start, steps.windows.start)
    return Spans(start, np.maximum(_end_of_work(trace, steps, phases.spans), start))


def _worked(windows: Spans, work: Spans) -> Spans | None:
    """From the beginning of the first work in each window to the end of the last."""
    first = np.searchsorted(work.end, windows.start, side="right")
    last = np.searchsorted(work.start, windows.end, side="left") - 1
    if not len(work) or (first > last).any():
        return None
    return Spans(np.maximum(work.start[first], windows.start), np.minimum(work.end[last], windows.end))


def _end_of_work(trace: Trace, steps: StepTable, phases: Spans) -> Int64:
    """For each phase its end, or the end of the last device work launched in it."""
    end = phases.end.copy()
    launched = launch_times(trace, steps.work)
    at = np.searchsorted(phases.start, launched, side="right") - 1
    inside = (at >= 0) & (launched <= phases.end[np.maximum(at, 0)])
    np.maximum.at(end, at[inside], steps.work.end[inside])
    return end


def pipeline_bubble(phases: Sequence[PipelinePhase], schedule: PipelineSchedule) -> PipelineBubble:
    """The bubble of a pipeline from its ranks' phases in the same steps."""
    longest = np.max([phase.phase_ms for phase in phases], axis=0)
    computing = np.mean([phase.compute_ms for phase in phases], axis=0)
    return PipelineBubble(
        schedule=schedule.schedule,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        bubble=float(np.median(1 - computing / np.maximum(longest, 1e-9))),
        ideal=schedule.ideal_bubble,
        phase_ms=float(np.median(longest)),
    )


def bubble_sentence(found: PipelineBubble) -> str:
    """`The pipeline (1F1B, 2 ranks, 8 micro-batches) waits 35.0% of forward and backward; ...`."""
    return (
        f"The pipeline ({found.schedule}, {found.ranks} ranks, {found.micro_batches} micro-batches) does not compute"
        f" {format_percent(found.bubble)} of forward and backward; with equal stages and sends that take no time it"
        f" would be {format_percent(found.ideal)}, and with twice the micro-batches"
        f" {format_percent(found.ideal_of_twice)}."
    )
