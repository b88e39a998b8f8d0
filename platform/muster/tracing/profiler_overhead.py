"""The overhead of tracing: between two steps a rank starts its profiler or writes its trace.

Step times do not include it, but ranks that finish earlier wait in the following step, so medians exclude that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.tracing.formatting import format_seconds
from muster.tracing.run_folder import Float64, RankMetrics, finite_values


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """The overhead before `step` on the slowest rank, `rank`: `start_s` for starting the profiler, `write_s` for
    writing the trace. On the fastest rank it was `spread_s` less. In seconds."""

    step: int
    rank: int
    start_s: float = 0.0
    write_s: float = 0.0
    spread_s: float = 0.0


def profiler_overheads(metrics: Sequence[RankMetrics]) -> tuple[ProfilerOverhead, ...]:
    """One for each step before which any rank started its profiler or wrote its trace, in order of steps."""
    totals = [np.nan_to_num(m.trace_start_s) + np.nan_to_num(m.trace_write_s) for m in metrics]
    steps = sorted({int(step) for m, total in zip(metrics, totals, strict=True) for step in m.step[total > 0]})
    return tuple(_slowest_rank([overhead for m in metrics for overhead in _overheads_at(m, step)]) for step in steps)


def _overheads_at(metrics: RankMetrics, step: int) -> list[ProfilerOverhead]:
    """The rank's overhead before this step; empty if it did not reach the step."""
    return [
        ProfilerOverhead(
            step, metrics.rank, *(float(np.nan_to_num(t[i])) for t in (metrics.trace_start_s, metrics.trace_write_s))
        )
        for i in np.flatnonzero(metrics.step == step)
    ]


def _slowest_rank(overheads: list[ProfilerOverhead]) -> ProfilerOverhead:
    ordered = sorted(overheads, key=lambda overhead: (_total_s(overhead), -overhead.rank))
    return replace(ordered[-1], spread_s=_total_s(ordered[-1]) - _total_s(ordered[0]))


def _total_s(overhead: ProfilerOverhead) -> float:
    return overhead.start_s + overhead.write_s


def steady_median(metrics: RankMetrics, values: Float64, overheads: Sequence[ProfilerOverhead]) -> float | None:
    """The median of a rank's values without the steps that follow profiler overhead; of all steps if there are no
    others; None without values."""
    affected = np.isin(metrics.step, [overhead.step for overhead in overheads])
    known = finite_values(values[~affected])
    known = known if len(known) else finite_values(values)
    return float(np.median(known)) if len(known) else None


def overhead_sentences(overheads: Sequence[ProfilerOverhead], min_s: float) -> list[str]:
    """A sentence about the longest start and the longest write that took at least `min_s`; empty without any."""
    kinds = (
        ("the profiler was started", [(overhead.start_s, overhead) for overhead in overheads]),
        ("the trace was written", [(overhead.write_s, overhead) for overhead in overheads]),
    )
    longest = [(action, *max(times, key=lambda part: (part[0], -part[1].step))) for action, times in kinds if times]
    parts = [(action, time_s, overhead) for action, time_s, overhead in longest if time_s > 0 and time_s >= min_s]
    if not parts:
        return []
    actions = " and ".join(
        f"before step {overhead.step} {action} ({_describe(time_s, overhead)})" for action, time_s, overhead in parts
    )
    steps, pronoun = ("this step", "it") if len(parts) == 1 else ("these steps", "them")
    uneven = any(overhead.spread_s >= min_s for _, _, overhead in parts)
    waits = f"; in {pronoun}, faster ranks wait for the others" if uneven else ""
    return [f"{actions[:1].upper()}{actions[1:]}. Step times do not include this; medians exclude {steps}{waits}."]


def _describe(duration_s: float, overhead: ProfilerOverhead) -> str:
    if round(overhead.spread_s, 3) == 0:
        return format_seconds(duration_s)
    return (
        f"{format_seconds(duration_s)} on rank {overhead.rank}, {format_seconds(overhead.spread_s)} more "
        f"than on the fastest"
    )


def slow_step_cause(step: int, overheads: Sequence[ProfilerOverhead]) -> str:
    """What tracing did before this step: "trace written", "profiler started" or empty."""
    overhead = next((overhead for overhead in overheads if overhead.step == step), None)
    return "" if overhead is None else "trace written" if overhead.write_s else "profiler started"
