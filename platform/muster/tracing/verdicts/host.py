"""Detectors of time in which the host decides: blocked on the CPU, compiling, or in Python between compiled graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.rank_record import RankRecord
from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.rank_comparison import Matrix, RankComparison
from muster.tracing.verdicts.types import Cause, Verdict
from muster.tracing.work.work_kinds import CHECKPOINT_NAME, DATA_NAME, NO_ANNOTATION, is_phase

MIN_SHARE = 0.05  # of a step
MIN_SHARE_CPU = 0.15
MIN_STEPS = 3  # for what must be so in most steps
ALONE = 0.1  # of a rank's time in an annotation; the others have less
MIN_SHARE_ALL = 0.10  # of a step, for a cause that all ranks have


def blocked_hosts(ranks: RankComparison) -> Iterator[Verdict]:
    """Annotations in which the host is blocked, in traces without device work: on one rank longer, or on all ranks."""
    names = sorted({name for record in ranks.records for name in record.blocked_ms})
    for name in names:
        ms = np.array([_per_step(ranks, record, name) for record in ranks.records])
        # Outside of annotations, or in a phase of training, a host that is slow on all ranks is launch-bound.
        specific = _is_specific(name)
        found = [_Excess.of(ranks, ms, i) for i in range(len(ms))] if len(ms) > 1 else []
        against = [one for one in found if _is_blocked(ranks, one, specific=specific)]
        for one in against:
            times = f"{_ms(one.mean_ms)}, on other ranks {_ms(one.mean_ms - one.cost_ms)}"
            yield _blocked(ranks, name, (one.rank,), one.cost_ms, times)
        usual = float(np.median(ms.mean(axis=1)))
        if not against and specific and usual >= MIN_SHARE_ALL * ranks.step_ms:
            yield _blocked(ranks, name, (), usual, f"{_ms(usual)} a step")


@dataclass(frozen=True, slots=True)
class _Excess:
    """How long a rank is blocked in an annotation, beside its peers, or all others if it has none.

    `cost_ms` is the mean above the median of the others, `steady_ms` what it exceeds the longest of the others by in
    three of four steps.
    """

    rank: int
    mean_ms: float
    cost_ms: float
    steady_ms: float

    @classmethod
    def of(cls, ranks: RankComparison, ms: Matrix, i: int) -> _Excess:
        own = ranks.records[i]
        peers = {peer.rank for peer in ranks.peers(own)}
        others = np.array([o.rank in peers if peers else o is not own for o in ranks.records])
        steps = ms.shape[1]
        return cls(
            rank=own.rank,
            mean_ms=float(ms[i].mean()),
            cost_ms=float(ms[i].mean() - np.median(ms[others].mean(axis=1))),
            steady_ms=float(np.quantile(ms[i] - ms[others].max(axis=0), 0.25)) if steps >= MIN_STEPS else 0.0,
        )


def _is_blocked(ranks: RankComparison, one: _Excess, *, specific: bool) -> bool:
    """Ranks on the same CPUs preempt each other, and a process that is preempted looks like one that is blocked. So a
    difference on the CPU must be large, or in most steps, or in an annotation that the others do not have."""
    some, much = MIN_SHARE * ranks.step_ms, MIN_SHARE_CPU * ranks.step_ms
    if not specific:
        return one.steady_ms >= much
    if one.cost_ms < some:
        return False
    alone = one.mean_ms - one.cost_ms <= ALONE * one.mean_ms
    return one.cost_ms >= much or one.steady_ms >= some or alone


def _per_step(ranks: RankComparison, record: RankRecord, name: str) -> Matrix:
    values = record.blocked_ms.get(name)
    return np.zeros(len(ranks.steps)) if values is None else ranks.per_step(record, values)


def _is_specific(name: str) -> bool:
    return name != NO_ANNOTATION and not is_phase(name)


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)


def _blocked(ranks: RankComparison, name: str, who: tuple[int, ...], cost: float, times: str) -> Verdict:
    stage = next((record.stage for record in ranks.records if who and record.rank == who[0]), None)
    if DATA_NAME.match(name):
        cause, advice = Cause.DATA_LOADING, "Try more DataLoader workers, prefetching, or faster storage"
    elif CHECKPOINT_NAME.search(name):
        cause, advice = Cause.CHECKPOINT, "Save asynchronously (torch.distributed.checkpoint.async_save) or less often"
    else:
        cause, advice = Cause.HOST_BLOCKED, "Look at the code there: sleeps, I/O, locks, or a host with too few CPUs"
    where = f"in {name!r}" if name != NO_ANNOTATION else "and no annotation is open"
    idle = f"no operator runs {where}"
    return Verdict(who, stage, cause, cost, f"{idle}: {times}", 0.9, advice)


def compilations(ranks: RankComparison) -> Sequence[Verdict]:
    """torch.compile at work in the traced steps, or by the trainer's records in others after the first one."""
    recorded = {compiled.rank: compiled for compiled in ranks.compiled}
    traced = {record.rank: float(ranks.per_step(record, record.compile_ms).mean()) for record in ranks.records}
    cost = {rank: max(ms, recorded[rank].ms_per_step if rank in recorded else 0.0) for rank, ms in traced.items()}
    costly = tuple(rank for rank, ms in cost.items() if ms >= max(MIN_SHARE * ranks.step_ms, 1.0))
    if not costly:
        return ()
    worst = max(costly, key=lambda rank: (cost[rank], -rank))
    evidence = f"up to {_ms(cost[worst])} of compilation a step"
    if traced[worst] >= cost[worst]:
        evidence += ", by the events of dynamo_timed"
    if (found := recorded.get(worst)) is not None and found.recompilations:
        evidence += f", {found.recompilations} compilations in {found.steps} steps"
        evidence += f", most often of {found.cause}" if found.cause else ""
    advice = "See TORCH_LOGS=recompiles; mark changing sizes with torch._dynamo.mark_dynamic, or pad them"
    who = () if len(costly) == len(ranks.records) > 1 else costly
    return (Verdict(who, None, Cause.RECOMPILATION, cost[worst], evidence, 0.95, advice),)


def graph_breaks(ranks: RankComparison) -> Sequence[Verdict]:
    """Devices that idle, in a run whose graphs are broken: the Python between two graphs launches nothing."""
    broken = [compiled for compiled in ranks.compiled if compiled.graph_breaks]
    if not broken or not ranks.on_device:
        return ()
    cost = float(np.median([ranks.per_step(record, record.idle_ms).mean() for record in ranks.records]))
    if cost < MIN_SHARE_ALL * ranks.step_ms:
        return ()
    most = max(broken, key=lambda compiled: (compiled.graph_breaks, -compiled.rank))
    evidence = f"the devices idle {_ms(cost)} a step, and rank {most.rank} has {most.graph_breaks} graph breaks"
    evidence += f", most often at {most.break_cause}" if most.break_cause else ""
    advice = "Move that code out of the compiled function, or see TORCH_LOGS=graph_breaks"
    return (Verdict((), None, Cause.GRAPH_BREAK, cost, evidence, 0.5, advice),)
