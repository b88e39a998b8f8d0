"""The picture of one step: the utilisation by each kind of work in a fixed number of time slots.

A step has thousands of kernels, and a chart a few hundred pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.read.spans import Spans
from muster.tracing.work.steps import StepTable
from muster.tracing.work.time_breakdown import CategorySpans
from muster.tracing.work.work_kinds import TimeCategory

SLOTS = 400
LEVELS = 4  # resolution of a slot: quarters
MAX_TIMELINES = 100  # steps of a trace that have a timeline: the report shows one


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step of one rank. `busy_levels` maps a kind of work to `SLOTS` digits 0..4: quarters of each slot covered."""

    step: int
    duration_s: float
    communication_s: float
    overlapped_s: float
    busy_levels: dict[str, str]


def step_timelines(lanes: CategorySpans, steps: StepTable) -> tuple[StepTimeline, ...]:
    """The timelines of the first `MAX_TIMELINES` steps."""
    shown = steps.windows[slice(MAX_TIMELINES)]
    communication = lanes.covered_s(lanes[TimeCategory.COMMUNICATION], shown)
    overlapped = lanes.covered_s(lanes.overlapped, shown)
    return tuple(
        StepTimeline(
            step=int(steps.numbers[i]),
            duration_s=(end - start) / 1e9,
            communication_s=float(communication[i]),
            overlapped_s=float(overlapped[i]),
            busy_levels=_busy_levels(lanes, start, end),
        )
        for i, (start, end) in enumerate(zip(shown.start.tolist(), shown.end.tolist(), strict=True))
        if end > start
    )


def _busy_levels(lanes: CategorySpans, start: int, end: int) -> dict[str, str]:
    """The digits of each kind of work that has any in [start, end)."""
    kinds = [kind for kind in TimeCategory if kind is not TimeCategory.OTHER]
    levels = {kind.name.lower(): slot_levels(lanes[kind], start, end) for kind in kinds}
    return {kind: digits for kind, digits in levels.items() if digits.strip("0")}


def slot_levels(spans: Spans, start: int, end: int) -> str:
    """Quarters covered of each of `SLOTS` equal parts of [start, end) by disjoint spans; above 2% at least 1."""
    if not len(spans) or end <= start:
        return "0" * SLOTS
    inside = spans[slice(np.searchsorted(spans.end, start, side="right"), np.searchsorted(spans.start, end))]
    if not len(inside):
        return "0" * SLOTS
    # The covered time up to t is piecewise linear in t, with knots at the edges of the spans.
    edges = np.column_stack((inside.start, inside.end)).ravel()
    lengths = inside.end - inside.start
    covered = np.column_stack((np.cumsum(lengths) - lengths, np.cumsum(lengths))).ravel()
    bounds = np.linspace(start, end, SLOTS + 1)
    parts = np.diff(np.interp(bounds, edges, covered)) / ((end - start) / SLOTS)
    quarters = np.where(parts > 0.02, np.maximum(np.rint(parts * LEVELS), 1), 0).astype(int)
    return "".join(map(str, np.minimum(quarters, LEVELS)))
