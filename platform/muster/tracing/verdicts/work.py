"""The compute work of ranks side by side: more of it, larger, slower, or unevenly split between stages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from muster.tracing.formatting import format_ms, format_percent
from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.lateness import Lateness
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.ranks.work_difference import compare_work, usual_compute_ms
from muster.tracing.verdicts.types import Cause, Claim
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.05  # of a step, for work that is known by its calls
MIN_SHARE_LATE = 0.03
MIN_PART_WORK = 0.05  # of the additional work, that the others wait for
SLOWER_RATIO = 1.04  # the same kernels on another device of the same kind vary less
IMBALANCE_RATIO = 1.35  # embedding and head make stages of an even split differ


def slower_work(late: Lateness, ms: Float64) -> Claim | None:
    """The work that made a rank late by so many milliseconds; on the CPU, where only calls are known, what it takes."""
    work = compare_work(late.ranks, late.record)
    if work is None:
        return None
    on_device = late.ranks.on_device
    extra, larger, slower = Cause.EXTRA_KERNELS, Cause.LARGER_INPUT, Cause.SLOW_DEVICE
    cost, cause = max((work.extra_ms, extra), (work.larger_ms, larger), (work.slower_ms, slower))
    least = 0.0 if on_device else MIN_SHARE * late.ranks.step_ms
    if cost <= least or (cause is slower and work.slower_ratio < SLOWER_RATIO):
        return None
    longer, kernels = format_percent(work.slower_ratio - 1), "kernels" if on_device else "operators"
    most = f"{format_ms(cost)} a step, most in {short_name(work.most)}"
    evidence = {
        extra: f"its peers do not run some {kernels}: {most}",
        larger: f"its kernels have larger grids: {most}"
        if on_device
        else f"its large operators take longer than on its peers, together {longer}, and the small ones do not",
        slower: f"the same kernels with the same grids take {longer} longer "
        "than on its peers, without a collective beside them",
    }[cause] + (work.larger_shape if cause is larger else "")
    ms = ms if on_device else np.full(len(ms), cost)
    place = work.most if cause is not slower and on_device else ""
    return Claim(cause, ms, MIN_SHARE_LATE, evidence, (late.record,), place)


def more_work(late: Lateness) -> Claim | None:
    """More or larger kernels are known by their number and grids also where the others compute beside the collective in
    which they wait; then they wait less."""
    work = compare_work(late.ranks, late.record)
    if work is None or late.cost_ms <= 0 or not late.steady:
        return None
    cost = max(work.extra_ms, work.larger_ms)
    if cost < MIN_SHARE_LATE * late.ranks.step_ms or late.cost_ms < MIN_PART_WORK * cost:
        return None
    return slower_work(late, np.full(len(late.ms), cost))


def extra_work_of_stages(ranks: RankComparison) -> Iterator[Claim]:
    """Work of a stage that those with the same blocks do not have, or that precedes its first forward pass."""
    for record in ranks.records if any(record.stage is not None for record in ranks.records) else ():
        if (work := compare_work(ranks, record)) is not None:
            ms = work.extra_ms
            evidence = f"{format_ms(ms)} a step, most in {short_name(work.most)}"
            yield Claim(Cause.EXTRA_KERNELS, np.full(len(ranks.steps), ms), MIN_SHARE, evidence, (record,), work.most)
    yield from (claim for claim in stage_imbalance(ranks) if claim.cause is Cause.EXTRA_KERNELS)


def stage_imbalance(ranks: RankComparison) -> Iterator[Claim]:
    """A pipeline stage that computes longer than the others; on the CPU, which other processes use, by its calls.

    If that is due to work before its first forward pass, the work is extra.
    """
    stages = sorted({record.stage for record in ranks.records if record.stage is not None})
    if len(stages) < 2:
        return
    measured = {record.rank: float(ranks.per_step(record, record.compute_ms).mean()) for record in ranks.records}
    compute_ms = measured if ranks.on_device else usual_compute_ms(ranks)
    of_stage = {stage: [record for record in ranks.records if record.stage == stage] for stage in stages}
    compute = {stage: float(np.median([compute_ms[r.rank] for r in who])) for stage, who in of_stage.items()}
    slowest = max(stages, key=lambda stage: (compute[stage], -stage))
    others, who = float(np.mean([compute[stage] for stage in stages if stage != slowest])), of_stage[slowest]
    if compute[slowest] < IMBALANCE_RATIO * others:
        return
    cost = np.full(len(ranks.steps), compute[slowest] - float(np.mean(list(compute.values()))))
    before = float(np.median([ranks.per_step(record, record.before_pipeline_ms).mean() for record in who]))
    if compute[slowest] - before >= IMBALANCE_RATIO * others:
        evidence = f"{format_ms(compute[slowest])} of work a step, the other stages {format_ms(others)}"
        yield Claim(Cause.STAGE_IMBALANCE, cost, MIN_SHARE, evidence, who)
    elif cost.mean() >= MIN_SHARE * ranks.step_ms:  # without it the stages were balanced
        evidence = "it is launched before the first forward pass of a step"
        yield Claim(Cause.EXTRA_KERNELS, np.full(len(cost), before), MIN_SHARE, evidence, who)
