"""What costs time and why: typed verdicts from registered detectors, and their sentences.

A detector is a function from the compared ranks to verdicts. `derive_verdicts` runs all, costliest first. Thresholds
are shares of a step, larger on the CPU, where ranks disturb each other.
"""

from __future__ import annotations

from muster.tracing.rank_comparison import RankComparison
from muster.tracing.verdicts.communication import exposed_collectives, late_ranks, slow_links
from muster.tracing.verdicts.host import allocations, blocked_hosts, compilations, graph_breaks, launch_bound
from muster.tracing.verdicts.types import Cause, Detector, Verdict, describe
from muster.tracing.verdicts.work import excess_bubble, extra_work, slower_work, stage_imbalance

__all__ = ["DETECTORS", "Cause", "Detector", "Verdict", "derive_verdicts", "describe"]

DETECTORS: tuple[Detector, ...] = (
    compilations,
    blocked_hosts,
    allocations,
    extra_work,
    slower_work,
    stage_imbalance,
    exposed_collectives,
    slow_links,
    launch_bound,
    graph_breaks,
)
_OF_WORK = (Cause.EXTRA_KERNELS, Cause.SLOW_DEVICE)
# Whatever slows one stage down makes the others wait.
_OF_STAGES = (
    *_OF_WORK,
    Cause.STAGE_IMBALANCE,
    Cause.RECOMPILATION,
    Cause.HOST_BLOCKED,
    Cause.LAUNCH_BOUND,
    Cause.SLOW_NETWORK,
)


def derive_verdicts(ranks: RankComparison) -> tuple[Verdict, ...]:
    """All verdicts, costliest first. A rank that the others wait for gets one even if no detector knows the cause."""
    found = [verdict for detector in DETECTORS for verdict in detector(ranks)]
    compiling = {rank for verdict in found if verdict.cause is Cause.RECOMPILATION for rank in verdict.ranks}
    # The compiler runs operators itself.
    found = [verdict for verdict in found if verdict.cause not in _OF_WORK or not compiling.intersection(verdict.ranks)]
    extra = {rank for verdict in found if verdict.cause is Cause.EXTRA_KERNELS for rank in verdict.ranks}
    found = [v for v in found if v.cause is not Cause.STAGE_IMBALANCE or not extra.intersection(v.ranks)]
    if not any(verdict.cause in _OF_STAGES for verdict in found):
        found += excess_bubble(ranks)
    found += late_ranks(ranks, explained={rank for verdict in found for rank in verdict.ranks})
    return tuple(sorted(found, key=lambda verdict: (-verdict.cost_ms, verdict.cause, verdict.ranks)))
