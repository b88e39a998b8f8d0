"""The timeline of one step: the utilisation of a rank by each kind of work, in a fixed number of time slots.

A step has thousands of kernels and a chart a few hundred pixels, so each slot has the fraction of it that was covered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.events import Events, Trace
from muster.tracing.idle import launch_times
from muster.tracing.overlap import overlap
from muster.tracing.spans import Spans, clip
from muster.tracing.steps import ProfiledStep
from muster.tracing.time_breakdown import CategorySpans, TimeCategory

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
