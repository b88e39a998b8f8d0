"""What costs time and why: typed verdicts, and their sentences.

Each rule claims what a cause costs in each step, read off the account of the steps and the comparison of the ranks. A
claim of at least its share of a step becomes a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.tracing.ranks.attribution import account
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.all_ranks import bubble, common_losses, compilations, graph_breaks, launch_bound
from muster.tracing.verdicts.communication import exposed_collectives, redundant_all_reduces, slow_links
from muster.tracing.verdicts.late_ranks import late_ranks
from muster.tracing.verdicts.types import Cause, Claim, Verdict, describe, phrase_of
from muster.tracing.verdicts.work import extra_work_of_stages, stage_imbalance

__all__ = ["Cause", "Verdict", "derive_verdicts", "describe", "phrase_of"]

# Whatever slows one stage down makes the others wait.
_OF_STAGES = (Cause.STAGE_IMBALANCE, Cause.SLOW_NETWORK, Cause.RECOMPILATION, Cause.LAUNCH_BOUND)


def derive_verdicts(ranks: RankComparison) -> tuple[Verdict, ...]:
    """All verdicts, costliest first."""
    verdicts = [claim.verdict(ranks.step_ms) for claim in _claims(ranks)]
    return tuple(sorted(verdicts, key=lambda verdict: (-verdict.cost_ms, verdict.cause, verdict.ranks)))


def _claims(ranks: RankComparison) -> list[Claim]:
    def holding(*of: Iterable[Claim]) -> list[Claim]:
        return [claim for claims in of for claim in claims if claim.cost_ms >= claim.share * ranks.step_ms]

    found = account(ranks)
    claims = holding(extra_work_of_stages(ranks))[:1]
    with_more = {record.rank for claim in claims for record in claim.who}
    common = {claim.cause: claim for claim in holding(common_losses(ranks, found))}
    # What all ranks do takes some of them a little longer.
    late = [
        one for one in late_ranks(ranks, found) if one.cause not in common or one.cost_ms > common[one.cause].cost_ms
    ]
    accused = {claim.cause for claim in late}
    late += [claim for claim in common.values() if claim.cause not in accused]
    claims += [claim for claim in late if not with_more.intersection(record.rank for record in claim.who)]
    if compiling := holding(compilations(ranks)):
        # The compiler runs operators itself.
        by_compiler = (Cause.RECOMPILATION, *(() if ranks.on_device else (Cause.EXTRA_KERNELS,)))
        claims = [*(claim for claim in claims if claim.cause not in by_compiler), *compiling]
    claims += holding(exposed_collectives(ranks), redundant_all_reduces(ranks), slow_links(ranks), graph_breaks(ranks))
    if not any(claim.who for claim in claims):
        claims += holding(stage_imbalance(ranks), launch_bound(ranks, found))
        if not any(claim.cause in _OF_STAGES for claim in claims):
            claims += holding(bubble(ranks))
    return claims
