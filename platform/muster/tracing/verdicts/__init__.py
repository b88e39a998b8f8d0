"""What costs time and why: typed verdicts, and their sentences.

They are read off the account of the steps (`owners`), with rules for what only all ranks together show: exposed
collectives, compilation, pipelines.
"""

from __future__ import annotations

from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.communication import exposed_collectives, redundant_all_reduces, slow_links
from muster.tracing.verdicts.host import compilations, graph_breaks
from muster.tracing.verdicts.owners import launch_bound, owners
from muster.tracing.verdicts.types import Cause, Verdict, describe, phrase_of
from muster.tracing.verdicts.work import bubble, extra_work_of_stages, stage_imbalance

__all__ = ["Cause", "Verdict", "derive_verdicts", "describe", "phrase_of"]

# Whatever slows one stage down makes the others wait.
_OF_STAGES = (Cause.STAGE_IMBALANCE, Cause.SLOW_NETWORK, Cause.RECOMPILATION, Cause.LAUNCH_BOUND)


def derive_verdicts(ranks: RankComparison) -> tuple[Verdict, ...]:
    """All verdicts, costliest first."""
    found = [*extra_work_of_stages(ranks)]
    with_more = {rank for verdict in found for rank in verdict.ranks}
    found += [verdict for verdict in owners(ranks) if not with_more.intersection(verdict.ranks)]
    if compiling := compilations(ranks):
        # The compiler runs operators itself.
        by_compiler = (Cause.RECOMPILATION, *(() if ranks.on_device else (Cause.EXTRA_KERNELS,)))
        found = [*(verdict for verdict in found if verdict.cause not in by_compiler), *compiling]
    found += [*exposed_collectives(ranks), *redundant_all_reduces(ranks), *slow_links(ranks), *graph_breaks(ranks)]
    if not any(verdict.ranks for verdict in found):
        found += [*stage_imbalance(ranks), *launch_bound(ranks)]
        if not any(verdict.cause in _OF_STAGES for verdict in found):
            found += bubble(ranks)
    return tuple(sorted(found, key=lambda verdict: (-verdict.cost_ms, verdict.cause, verdict.ranks)))
