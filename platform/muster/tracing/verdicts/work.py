"""Detectors that compare the compute work of ranks: more of it, slower, or unevenly split between stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from muster.tracing.account.rank_record import RankRecord
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.host import MIN_SHARE
from muster.tracing.verdicts.types import Cause, Verdict
from muster.tracing.work.operator_stats import OperatorStats, short_name

EXCESS_BUBBLE = 0.1  # of forward and backward, above the ideal of the schedule
IMBALANCE_RATIO = 1.35  # embedding and head make stages of an even split differ
EXTRA_WORK_ADVICE = "Look for work that only this rank does, such as logging, metrics or another process's kernels"


def _work(record: RankRecord) -> dict[str, OperatorStats]:
    return {op.name: op for op in record.work}


def _calls_per_step(record: RankRecord) -> dict[str, float]:
    return {op.name: op.calls / len(record.steps) for op in record.work}


def extra_work(ranks: RankComparison) -> Iterator[Verdict]:
    """Kernels that a rank runs more often than its peers, less those that it runs less often.

    A stage of a pipeline without replicas has the other inner stages as peers, which may have more or fewer blocks: the
    calls of all kernels are expected in the ratio of the median kernel.
    """
    for record in ranks.records:
        same = ranks.peers(record)
        peers = same or ranks.inner_stages(record)
        if not peers:
            continue
        own, of_peers = _calls_per_step(record), [_calls_per_step(peer) for peer in peers]
        usual = {
            name: float(np.median([calls.get(name, 0.0) for calls in of_peers]))
            for name in {*own, *(name for calls in of_peers for name in calls)}
        }
        shared = [own[name] / calls for name, calls in usual.items() if calls and name in own]
        scale = 1.0 if same or not shared else float(np.median(shared))
        mean_ns = {op.name: op.mean_ns for one in (record, *reversed(peers)) for op in one.work}
        differences = {
            name: (own.get(name, 0.0) - scale * calls) * mean_ns[name] / 1e6 for name, calls in usual.items()
        }
        cost = sum(differences.values())
        if cost >= MIN_SHARE * ranks.step_ms:  # calls do not depend on the load of CPUs
            most = max(differences, key=lambda name: (differences[name], name))
            evidence = f"{format_seconds(cost / 1e3)} a step, most in {short_name(most)}"
            yield Verdict((record.rank,), record.stage, Cause.EXTRA_KERNELS, cost, evidence, 0.9, EXTRA_WORK_ADVICE)


def stage_imbalance(ranks: RankComparison) -> Sequence[Verdict]:
    """A pipeline stage that computes longer than the others; on the CPU, which other processes use, by its calls.

    If that is due to work before its first forward pass, the work is extra.
    """
    measured = {record.rank: float(ranks.per_step(record, record.compute_ms).mean()) for record in ranks.records}
    return _imbalance(ranks, measured if ranks.on_device else _usual_compute_ms(ranks))


def _usual_compute_ms(ranks: RankComparison) -> dict[int, float]:
    """The compute of each rank if each call took as long as on the median rank: without the load of the CPUs."""
    work = {record.rank: _work(record) for record in ranks.records}
    known: dict[str, list[float]] = {}
    for operators in work.values():
        for name, op in operators.items():
            known.setdefault(name, []).append(op.mean_ns)
    usual = {name: float(np.median(means)) for name, means in known.items()}
    return {
        record.rank: sum(op.calls * usual[name] for name, op in work[record.rank].items()) / 1e6 / len(record.steps)
        for record in ranks.records
    }


def _imbalance(ranks: RankComparison, compute_ms: Mapping[int, float]) -> Sequence[Verdict]:
    stages = sorted({record.stage for record in ranks.records if record.stage is not None})
    if len(stages) < 2:
        return ()
    compute = {
        stage: float(np.median([compute_ms[r.rank] for r in ranks.records if r.stage == stage])) for stage in stages
    }
    slowest = max(stages, key=lambda stage: (compute[stage], -stage))
    others = float(np.mean([compute[stage] for stage in stages if stage != slowest]))
    cost = compute[slowest] - float(np.mean(list(compute.values())))
    if compute[slowest] < IMBALANCE_RATIO * others or cost < MIN_SHARE * ranks.step_ms:
        return ()
    of_stage = [record for record in ranks.records if record.stage == slowest]
    who = tuple(record.rank for record in of_stage)
    before = float(np.median([ranks.per_step(record, record.before_pipeline_ms).mean() for record in of_stage]))
    if compute[slowest] - before < IMBALANCE_RATIO * others:  # without it the stages were balanced
        evidence = "it is launched before the first forward pass of a step"
        return (Verdict(who, slowest, Cause.EXTRA_KERNELS, before, evidence, 0.8, EXTRA_WORK_ADVICE),)
    times = f"{format_seconds(compute[slowest] / 1e3)} of work a step, the other stages {format_seconds(others / 1e3)}"
    advice = "Move blocks to the other stages"
    return (Verdict(who, slowest, Cause.STAGE_IMBALANCE, cost, times, 0.85, advice),)


def excess_bubble(ranks: RankComparison) -> Iterator[Verdict]:
    """A pipeline that waits longer than its schedule needs. On the CPU, Python between operators looks like that."""
    found = ranks.pipeline_bubble() if ranks.on_device else None
    if found is None or found.bubble - found.ideal < EXCESS_BUBBLE:
        return
    cost = (found.bubble - found.ideal) * found.phase_ms
    shares = (
        f"{format_percent(found.bubble)} of forward and backward; {found.schedule} needs {format_percent(found.ideal)}"
    )
    advice = "Balance the stages, use larger micro-batches, or check the transfers between the stages"
    yield Verdict((), None, Cause.PIPELINE_BUBBLE, cost, f"the ranks do not compute {shares}", 0.7, advice)
