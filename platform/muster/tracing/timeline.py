"""A picture of one step: how busy each kind of work kept a rank, in a fixed number of slots of time.

A step holds thousands of kernels and a picture a few hundred pixels: instead of dropping or joining spans, each slot
tells the part of it that was covered.
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
LEVELS = 4  # a slot is covered 0, 1/4, ... 4/4


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step of one rank. `rows` maps a kind of work to `SLOTS` digits 0..4: quarters of each slot covered."""

    step: int
    duration_s: float
    communication_s: float
    overlapped_s: float
    busy_levels: dict[str, str]


def step_timelines(
    trace: Trace, work: Events, lanes: CategorySpans, steps: tuple[ProfiledStep, ...]
) -> tuple[StepTimeline, ...]:
    """A picture of every step with work in it."""
    return tuple(
        _step_timeline(step, lanes, window) for step in steps if (window := _window(trace, work, step)) is not None
    )


def _window(trace: Trace, work: Events, step: ProfiledStep) -> tuple[int, int] | None:
    """From when to when the step's work ran: on a device that is not when the CPU was in the step, but later."""
    if not len(work):
        return (step.start, step.end) if step.end > step.start else None
    launched = launch_times(trace, work)
    here = work[(launched >= step.start) & (launched < step.end)]
    lasting = here[here.end > here.start]
    return (int(lasting.start.min()), int(lasting.end.max())) if len(lasting) else None


def _step_timeline(step: ProfiledStep, lanes: CategorySpans, window: tuple[int, int]) -> StepTimeline:
    start, end = window
    both = overlap(clip(lanes[TimeCategory.COMMUNICATION], start, end), lanes.computing)
    rows = {
        kind.name.lower(): slot_levels(lanes[kind], start, end)
        for kind in TimeCategory
        if kind is not TimeCategory.OTHER
    }
    return StepTimeline(
        step=step.number,
        duration_s=(end - start) / 1e9,
        communication_s=both.communication_ns / 1e9,
        overlapped_s=both.overlapped_ns / 1e9,
        busy_levels={kind: row for kind, row in rows.items() if row.strip("0")},
    )


def slot_levels(spans: Spans, start: int, end: int) -> str:
    """Quarters covered of each of `SLOTS` equal parts of [start, end); what is covered at all shows as at least 1."""
    inside = clip(spans, start, end)
    if not len(inside) or end <= start:
        return "0" * SLOTS
    # Covered time up to a moment grows only within spans, so it is a piecewise linear function through their edges.
    edges = np.column_stack((inside.start, inside.end)).ravel()
    lengths = inside.end - inside.start
    covered = np.column_stack((np.cumsum(lengths) - lengths, np.cumsum(lengths))).ravel()
    bounds = np.linspace(start, end, SLOTS + 1)
    parts = np.diff(np.interp(bounds, edges, covered)) / ((end - start) / SLOTS)
    quarters = np.where(parts > 0.02, np.maximum(np.rint(parts * LEVELS), 1), 0).astype(int)
    return "".join(map(str, np.minimum(quarters, LEVELS)))
