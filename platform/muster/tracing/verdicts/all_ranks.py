"""Rules for what all ranks lose: time that every one spends on the same, launching, compilation, and pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from muster.tracing.account.kinds import HOST, Label, Spent
from muster.tracing.formatting import format_ms, format_percent
from muster.tracing.ranks.attribution import Account, Float64
from muster.tracing.ranks.lateness import ONE_PLACE, UNNAMED, Times
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.late_ranks import KINDS, evidence_of, launching
from muster.tracing.verdicts.types import Cause, Claim

MIN_SHARE = 0.10  # of a step, for what all ranks do
MIN_SHARE_COMPILING = 0.05
LAUNCH_BOUND_SHARE = 0.4
SMALL_KERNEL_US = 20.0
EXCESS_BUBBLE = 0.1  # of forward and backward, above the ideal of the schedule
LARGE_IDEAL = 0.3  # of forward and backward, that a schedule leaves idle


def common_losses(ranks: RankComparison, found: Account) -> Iterator[Claim]:
    """What every rank spends in each step on something that can be named.

    Hosts do something at the same time, but the devices of some wait for that of another one meanwhile: the step loses
    what the slowest one idles.
    """
    spent, hosts = Times.of(found.spent_ms, 1), Times.of(found.host_ms, 1)
    alone = ranks.records if len(ranks.records) == 1 else ()
    for kind, idle in spent.kinds.items():
        # A pause in a phase of training is part of launching its work, and several ranks may wait for each other.
        paused = kind is Spent.BLOCKED
        if kind not in KINDS or (paused and not alone):
            continue
        label, lost = spent.most(kind), idle.min(axis=0)
        if paused:
            label, lost = _paused(hosts, spent.labels.get(Label(kind), np.zeros((1, 1))).min(axis=0))
        elif kind in HOST and ranks.on_device:
            most = idle[int(idle.mean(axis=1).argmax())]
            least = float(hosts.kinds[kind].mean(axis=-1).min())
            lost = most * min(1.0, least / max(float(most.mean()), 1e-9))
        evidence = evidence_of(label, lost, ranks, paused=paused)
        yield Claim(KINDS[label.spent][0], lost, MIN_SHARE, evidence, alone, label.place)


def _paused(hosts: Times, idle: Float64) -> tuple[Label, Float64]:
    """The place before which the host pauses longest, if most of its pauses are there, and what is lost by that."""
    most, total = hosts.most(Spent.BLOCKED), hosts.mean(Spent.BLOCKED)
    pauses = hosts.labels.get(most, np.zeros((1, len(idle)))).min(axis=0)
    return most, np.minimum(idle, pauses) if pauses.mean() >= ONE_PLACE * total else np.zeros(len(idle))


def launch_bound(ranks: RankComparison, found: Account) -> Iterator[Claim]:
    """Small kernels, and devices that idle most of the time behind hosts that launch them, on all ranks."""
    lost = np.sum([ms for label, ms in found.spent_ms.items() if label.spent in UNNAMED], axis=0).min(axis=0)
    work = [op for record in ranks.records for op in record.work]
    mean_us = sum(op.total_ns for op in work) / max(sum(op.calls for op in work), 1) / 1e3
    if 0 < mean_us < SMALL_KERNEL_US:
        place = launching(ranks.records[0])
        evidence = f"the devices idle {format_ms(float(lost.mean()))} a step, and a kernel takes"
        evidence += f" {format_ms(mean_us / 1e3)} on average{f'; most are launched by {place}' if place else ''}"
        yield Claim(Cause.LAUNCH_BOUND, lost, LAUNCH_BOUND_SHARE, evidence, place=place)


def compilations(ranks: RankComparison) -> Iterator[Claim]:
    """torch.compile at work in the traced steps, or by the trainer's records in others after the first one."""
    recorded = {compiled.rank: compiled for compiled in ranks.compiled}
    traced = {record.rank: ranks.per_step(record, record.compile_ms) for record in ranks.records}
    cost = {
        rank: max(float(ms.mean()), recorded[rank].ms_per_step if rank in recorded else 0.0)
        for rank, ms in traced.items()
    }
    costly = [record for record in ranks.records if cost[record.rank] >= max(MIN_SHARE_COMPILING * ranks.step_ms, 1.0)]
    if not costly:
        return
    worst = max(costly, key=lambda record: (cost[record.rank], -record.rank)).rank
    evidence, ms = f"up to {format_ms(cost[worst])} of compilation a step", traced[worst]
    if ms.mean() >= cost[worst]:
        evidence += ", by the events of dynamo_timed"
    else:
        ms = np.full(len(ms), cost[worst])
    if (found := recorded.get(worst)) is not None and found.recompilations:
        evidence += f", {found.recompilations} compilations in {found.steps} steps"
        evidence += f", most often of {found.cause}" if found.cause else ""
    who = () if len(costly) == len(ranks.records) > 1 else costly
    yield Claim(Cause.RECOMPILATION, ms, MIN_SHARE_COMPILING, evidence, who)


def graph_breaks(ranks: RankComparison) -> Iterator[Claim]:
    """Devices that idle, in a run whose graphs are broken: the Python between two graphs launches nothing."""
    broken = [compiled for compiled in ranks.compiled if compiled.graph_breaks]
    if broken and ranks.on_device:
        idle = np.median([ranks.per_step(record, record.idle_ms) for record in ranks.records], axis=0)
        most = max(broken, key=lambda compiled: (compiled.graph_breaks, -compiled.rank))
        evidence = f"the devices idle {format_ms(float(idle.mean()))} a step, and rank {most.rank} has"
        evidence += f" {most.graph_breaks} graph breaks"
        evidence += f", most often at {most.break_cause}" if most.break_cause else ""
        yield Claim(Cause.GRAPH_BREAK, idle, MIN_SHARE, evidence)


def bubble(ranks: RankComparison) -> Iterator[Claim]:
    """A pipeline that waits longer than its schedule needs, or whose schedule has too few micro-batches. On the CPU,
    Python between operators looks like the first."""
    found = ranks.pipeline_bubble()
    if found is None:
        return
    lost, reasons = 0.0, []
    if ranks.on_device and (excess := found.bubble - found.ideal) >= EXCESS_BUBBLE:
        lost = excess
        reasons.append(
            f"the ranks do not compute {format_percent(found.bubble)} of forward and backward; "
            f"{found.schedule} needs {format_percent(found.ideal)}"
        )
    if found.ideal >= LARGE_IDEAL:
        lost += 1 - (1 - found.ideal) / (1 - found.ideal_of_twice)
        reasons.append(
            f"{found.micro_batches} micro-batches on {found.ranks} ranks leave {format_percent(found.ideal)} idle, "
            f"twice as many {format_percent(found.ideal_of_twice)}"
        )
    if reasons:
        share = EXCESS_BUBBLE * found.phase_ms / ranks.step_ms
        ms = np.full(len(ranks.steps), lost * found.phase_ms)
        yield Claim(Cause.PIPELINE_BUBBLE, ms, share, "; ".join(reasons))
