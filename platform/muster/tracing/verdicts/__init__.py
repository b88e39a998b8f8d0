"""What costs time and why: typed verdicts, and their sentences.

On devices they are read off the account of the steps (`owners`); on the CPU, where ranks disturb each other, detectors
compare the ranks with larger thresholds.
"""

from __future__ import annotations

from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.communication import exposed_collectives, slow_links
from muster.tracing.verdicts.host import blocked_hosts, compilations, graph_breaks
from muster.tracing.verdicts.owners import launch_bound, owners
from muster.tracing.verdicts.types import Cause, Verdict, describe, phrase_of
from muster.tracing.verdicts.work import excess_bubble, extra_work, stage_imbalance

__all__ = ["Cause", "Verdict", "derive_verdicts", "describe", "phrase_of"]

# Whatever slows one stage down makes the others wait.
_OF_STAGES = (
    Cause.EXTRA_KERNELS,
    Cause.SLOW_DEVICE,
    Cause.STAGE_IMBALANCE,
    Cause.RECOMPILATION,
    Cause.HOST_BLOCKED,
    Cause.LAUNCH_BOUND,
    Cause.SLOW_NETWORK,
)


def derive_verdicts(ranks: RankComparison) -> tuple[Verdict, ...]:
    """All verdicts, costliest first."""
    found = _on_devices(ranks) if ranks.on_device else _on_cpus(ranks)
    return tuple(sorted(found, key=lambda verdict: (-verdict.cost_ms, verdict.cause, verdict.ranks)))


def _on_cpus(ranks: RankComparison) -> list[Verdict]:
    found = [*compilations(ranks), *blocked_hosts(ranks)]
    compiling = {rank for verdict in found if verdict.cause is Cause.RECOMPILATION for rank in verdict.ranks}
    # The compiler runs operators itself.
    more = [verdict for verdict in extra_work(ranks) if not compiling.intersection(verdict.ranks)]
    with_more = {rank for verdict in more for rank in verdict.ranks}
    found += [*more, *(verdict for verdict in stage_imbalance(ranks) if not with_more.intersection(verdict.ranks))]
    if not any(verdict.cause in _OF_STAGES for verdict in found):
        found += excess_bubble(ranks)
    return found


def _on_devices(ranks: RankComparison) -> list[Verdict]:
    of_stages: list[Verdict] = []
    if any(record.stage is not None for record in ranks.records):
        of_stages = [v for v in (*extra_work(ranks), *stage_imbalance(ranks)) if v.cause is Cause.EXTRA_KERNELS][:1]
    with_more = {rank for verdict in of_stages for rank in verdict.ranks}
    found = [*of_stages, *(verdict for verdict in owners(ranks) if not with_more.intersection(verdict.ranks))]
    compiling = compilations(ranks)
    found = [*(verdict for verdict in found if not compiling or verdict.cause is not Cause.RECOMPILATION), *compiling]
    found += [*exposed_collectives(ranks), *slow_links(ranks), *graph_breaks(ranks)]
    if not any(verdict.ranks for verdict in found):
        found += [*stage_imbalance(ranks), *launch_bound(ranks)]
        if not any(verdict.cause in _OF_STAGES for verdict in found):
            found += excess_bubble(ranks)
    return found
