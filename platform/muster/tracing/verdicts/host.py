"""What the trainer's records of torch.compile explain: compilation within steps, and Python between compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.types import ADVICE, Cause, Verdict

MIN_SHARE = 0.05  # of a step
MIN_SHARE_ALL = 0.10  # of a step, for a cause that all ranks have


def compilations(ranks: RankComparison) -> Sequence[Verdict]:
    """torch.compile at work in the traced steps, or by the trainer's records in others after the first one."""
    recorded = {compiled.rank: compiled for compiled in ranks.compiled}
    traced = {record.rank: float(ranks.per_step(record, record.compile_ms).mean()) for record in ranks.records}
    cost = {rank: max(ms, recorded[rank].ms_per_step if rank in recorded else 0.0) for rank, ms in traced.items()}
    costly = tuple(rank for rank, ms in cost.items() if ms >= max(MIN_SHARE * ranks.step_ms, 1.0))
    if not costly:
        return ()
    worst = max(costly, key=lambda rank: (cost[rank], -rank))
    evidence = f"up to {format_seconds(cost[worst] / 1e3)} of compilation a step"
    if traced[worst] >= cost[worst]:
        evidence += ", by the events of dynamo_timed"
    if (found := recorded.get(worst)) is not None and found.recompilations:
        evidence += f", {found.recompilations} compilations in {found.steps} steps"
        evidence += f", most often of {found.cause}" if found.cause else ""
    who = () if len(costly) == len(ranks.records) > 1 else costly
    return (Verdict(who, None, Cause.RECOMPILATION, cost[worst], evidence, 0.95, ADVICE[Cause.RECOMPILATION]),)


def graph_breaks(ranks: RankComparison) -> Sequence[Verdict]:
    """Devices that idle, in a run whose graphs are broken: the Python between two graphs launches nothing."""
    broken = [compiled for compiled in ranks.compiled if compiled.graph_breaks]
    if not broken or not ranks.on_device:
        return ()
    cost = float(np.median([ranks.per_step(record, record.idle_ms).mean() for record in ranks.records]))
    if cost < MIN_SHARE_ALL * ranks.step_ms:
        return ()
    most = max(broken, key=lambda compiled: (compiled.graph_breaks, -compiled.rank))
    evidence = f"the devices idle {format_seconds(cost / 1e3)} a step, and rank {most.rank} has"
    evidence += f" {most.graph_breaks} graph breaks"
    evidence += f", most often at {most.break_cause}" if most.break_cause else ""
    advice = "Move that code out of the compiled function, or see TORCH_LOGS=graph_breaks"
    return (Verdict((), None, Cause.GRAPH_BREAK, cost, evidence, 0.5, advice),)
