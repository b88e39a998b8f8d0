"""What tracing itself takes: between two steps a rank starts its profiler or writes its trace. No step time counts
that, but ranks that are done sooner wait in the step that follows; so that step says nothing about the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.tracing.formatting import format_seconds
from muster.tracing.run_folder import Float64, RankMetrics, finite_values


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """To start the profiler took `started_s` and to write the trace `written_s` before `step`, on the rank where it
    took longest, which is `rank`; 0 for what was not done there. On the rank that was done first (perhaps with
    nothing to do) it took `spread_s` less."""

    step: int
    rank: int
    start_s: float = 0.0
    write_s: float = 0.0
    spread_s: float = 0.0


def profiler_overheads(metrics: Sequence[RankMetrics]) -> tuple[ProfilerOverhead, ...]:
    """One for each step before which any rank started its profiler or wrote its trace, in order of steps."""
    took = [np.nan_to_num(m.trace_start_s) + np.nan_to_num(m.trace_write_s) for m in metrics]
    steps = sorted({int(step) for m, seconds_ in zip(metrics, took, strict=True) for step in m.step[seconds_ > 0]})
    return tuple(_slowest_rank([pause for m in metrics for pause in _overheads_at(m, step)]) for step in steps)


def _overheads_at(metrics: RankMetrics, step: int) -> list[ProfilerOverhead]:
    """The rank's own at this step, if it got there."""
    return [
        ProfilerOverhead(
            step, metrics.rank, *(float(np.nan_to_num(t[i])) for t in (metrics.trace_start_s, metrics.trace_write_s))
        )
        for i in np.flatnonzero(metrics.step == step)
    ]


def _slowest_rank(of_ranks: list[ProfilerOverhead]) -> ProfilerOverhead:
    ordered = sorted(of_ranks, key=lambda pause: (_total_s(pause), -pause.rank))
    return replace(ordered[-1], spread_s=_total_s(ordered[-1]) - _total_s(ordered[0]))


def _total_s(overhead: ProfilerOverhead) -> float:
    return overhead.start_s + overhead.write_s


def steady_median(metrics: RankMetrics, values: Float64, overheads: Sequence[ProfilerOverhead]) -> float | None:
    """The median of these values of a rank's steps, but for the steps after a pause; of all where there are no others,
    None where nothing is known."""
    after = np.isin(metrics.step, [pause.step for pause in overheads])
    known = finite_values(values[~after])
    known = known if len(known) else finite_values(values)
    return float(np.median(known)) if len(known) else None


def overhead_sentences(overheads: Sequence[ProfilerOverhead], min_s: float) -> list[str]:
    """A sentence on the longest start and the longest writing, as far as they took `least_s` or longer."""
    kinds = (
        ("the profiler was started", [(pause.start_s, pause) for pause in overheads]),
        ("the trace was written", [(pause.write_s, pause) for pause in overheads]),
    )
    longest = [(what, *max(took, key=lambda part: (part[0], -part[1].step))) for what, took in kinds if took]
    parts = [(what, long, pause) for what, long, pause in longest if long > 0 and long >= min_s]
    if not parts:
        return []
    named = " and ".join(f"before step {pause.step} {what} ({_describe(long, pause)})" for what, long, pause in parts)
    steps = "that step" if len(parts) == 1 else "these steps"
    waiting = "; in it" if len(parts) == 1 else "; in them"
    apart = any(pause.spread_s >= min_s for _, _, pause in parts)
    waits = f"{waiting} ranks that were done sooner wait for the others" if apart else ""
    return [f"{named[:1].upper()}{named[1:]}. No step time counts that, and medians leave {steps} out{waits}."]


def _describe(duration_s: float, overhead: ProfilerOverhead) -> str:
    if round(overhead.spread_s, 3) == 0:
        return format_seconds(duration_s)
    return (
        f"{format_seconds(duration_s)} on rank {overhead.rank}, {format_seconds(overhead.spread_s)} more "
        f"than on the fastest"
    )


def slow_step_cause(step: int, overheads: Sequence[ProfilerOverhead]) -> str:
    """What tracing did before this step, in two words; empty when nothing."""
    pause = next((pause for pause in overheads if pause.step == step), None)
    return "" if pause is None else "trace written" if pause.write_s else "profiler started"
