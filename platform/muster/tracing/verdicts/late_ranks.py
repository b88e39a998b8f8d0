"""Rules for a rank that the others wait for: what its device or its host does beyond theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from muster.tracing.account.kinds import Label, Spent
from muster.tracing.account.rank_record import KernelGroup, RankRecord
from muster.tracing.formatting import format_ms
from muster.tracing.ranks.attribution import Account, Float64
from muster.tracing.ranks.lateness import UNNAMED, Lateness, Times, is_steady
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.types import Cause, Claim
from muster.tracing.verdicts.work import more_work, slower_work
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.03  # of a step, by which a rank is late
MIN_SHARE_CAUSE = 0.015  # of a step, for the cause of that
MIN_PART = 0.05  # of the lateness, for its cause: a host that has slept launches late after that
EXPLAINED = 0.5  # of the lateness, by what the device idles for: else by what the host does
# Ranks on CPUs of one host preempt each other, and a process that is preempted looks like one that is blocked.
MIN_SHARE_CPU = 0.025
MIN_SHARE_CPU_STEADY = 0.05
ALONE = 0.1  # of a rank's time in something; the others have less
SILENT_PART = 0.3  # of the time in which a host runs no operator: short gaps, if it is slow and does not sleep
MIN_SHARE_LAUNCHES = 0.10  # of a step, for a host that is late between operators: launching varies by itself
SLOW_OPERATORS = 1.3  # times as long as on the peers
MORE_KERNELS = 1.2  # times as many as the peers
MORE_KERNELS_OF_STAGE = 2.0  # times as many as another stage, which has other blocks
MORE_CALLS = 3  # synchronising calls a step
MANY_CALLS = 10  # synchronising calls a step of every rank: no host can launch ahead
WAITING_OPERATOR = re.compile(r"aten::(item|_local_scalar_dense|copy_|_to_copy|to|nonzero|is_nonzero)$|c10d::|nccl:")

KINDS = {
    Spent.CHECKPOINT: (Cause.CHECKPOINT, "saving{where}"),
    Spent.COPY: (Cause.COPY, "copies ({place})"),
    Spent.ALLOCATOR: (Cause.ALLOCATOR_RETRIES, "device memory is allocated and freed{where}"),
    Spent.GARBAGE: (Cause.GARBAGE_COLLECTION, "Python collects garbage{where}"),
    Spent.PREPROCESS: (Cause.INPUT_PREPROCESSING, "operators of the CPU, most in {place}"),
    Spent.DATA: (Cause.DATA_LOADING, "{idle} while the host is{where}"),
    Spent.COMPILE: (Cause.RECOMPILATION, "compilation{where}"),
    Spent.ANNOTATION: (Cause.HOST_BLOCKED, "{idle} while the host is{where}"),
    Spent.BLOCKED: (Cause.HOST_BLOCKED, "{nothing}{at}"),
    Spent.SYNC: (Cause.HOST_SYNC, "the device idles after synchronising calls"),
}
"""Kinds of time that have a cause of their own, and what the evidence says of them."""


def late_ranks(ranks: RankComparison, found: Account) -> Iterator[Claim]:
    """What each rank costs the others."""
    calls, together = min(float(np.median(record.account.syncs)) for record in ranks.records), []
    for own in range(len(ranks.records)) if len(ranks.records) > 1 else ():
        late = Lateness.of(ranks, found, own)
        if (claim := _on_device(late) if ranks.on_device else _on_cpu(late)) is None:
            continue
        launches_late = claim.cause in (Cause.SLOW_HOST, Cause.HOST_SYNC) and not _more_synchronisations(late)
        if launches_late and calls >= MANY_CALLS:
            evidence = f"{calls:.0f} calls a step wait for the device on every rank, so that no host launches ahead"
            together.append(replace(claim, cause=Cause.HOST_SYNC, evidence=evidence, who=()))
        else:
            yield claim
    yield from sorted(together, key=lambda claim: -claim.cost_ms)[:1]


def _on_device(late: Lateness) -> Claim | None:
    """The kind of time that made a rank late."""
    cost, step_ms = late.cost_ms, late.ranks.step_ms
    # Stages have work of their own: `stage_imbalance` compares it.
    own_work = late.record.stage is not None and not late.ranks.peers(late.record)
    if cost < MIN_SHARE * step_ms:
        return more_work(late) if not own_work else None
    named = {kind for kind in late.spent.kinds if kind not in UNNAMED and not (own_work and kind is Spent.COMPUTE)}
    main = max(named, key=lambda kind: (late.spent.mean(kind), -kind), default=None)
    syncs = _more_synchronisations(late)
    if syncs and main in (None, Spent.SYNC, Spent.COMPUTE, Spent.BLOCKED) and late.spent.mean(Spent.SYNC) > 0:
        main = Spent.BLOCKED if late.spent.mean(Spent.BLOCKED) > late.spent.mean(Spent.SYNC) else Spent.SYNC
    elif main is None or late.spent.mean(main) < max(MIN_SHARE_CAUSE * step_ms, MIN_PART * cost):
        return _launches(late) or _by_host(late)
    if late.spent.mean(main) < EXPLAINED * cost and (by_host := _by_host(late)) is not None:
        return by_host
    if not late.steady and (main is Spent.COMPUTE or cost < 2 * MIN_SHARE * step_ms):
        return None
    if main is Spent.COMPUTE:
        return slower_work(late, late.ms)
    claim = _named(late, late.spent, main, late.ms)
    if main is Spent.SYNC and syncs:
        claim = replace(claim, evidence=f"{claim.evidence}, {syncs:.0f} more synchronising calls a step than its peers")
    return claim


def _on_cpu(late: Lateness) -> Claim | None:
    """Times of operators depend on the other processes: work counts by its calls, and gaps only in most steps."""
    step_ms = late.ranks.step_ms
    gaps = np.sum([late.beyond.kinds[kind] for kind in UNNAMED], axis=0)
    silent_ms = float((gaps + late.beyond.kinds[Spent.BLOCKED]).mean())
    regular = late.is_regular(MIN_SHARE_CPU * step_ms)
    much = silent_ms >= 2 * MIN_SHARE_CPU_STEADY * step_ms and gaps.mean() >= SILENT_PART * silent_ms
    if much and np.quantile(gaps, 0.25) >= MIN_SHARE_CPU * step_ms:
        if regular and late.pauses_ms >= EXPLAINED * silent_ms:
            return _named(late, late.spent, Spent.BLOCKED, late.ms)
        evidence = f"{format_ms(silent_ms)} a step more than on its peers pass between its operators"
        return _claim(late, Cause.SLOW_HOST, late.ms, evidence, silent_ms)
    if late.cost_ms >= MIN_SHARE_CPU * step_ms and regular:
        return _by_host(late)
    held = [kind for kind in late.spent.kinds if kind in KINDS and kind is not Spent.SYNC and _holds(late, kind)]
    main = max(held, key=lambda kind: (late.spent.mean(kind), -kind), default=None)
    work = slower_work(late, late.spent.kinds[Spent.COMPUTE])
    if main is None or (work is not None and work.cost_ms > late.spent.mean(main)):
        return work
    return _named(late, late.spent, main, late.spent.kinds[main])


def _holds(late: Lateness, kind: Spent) -> bool:
    cost = late.spent.mean(kind) / late.ranks.step_ms
    often = float(np.quantile(late.beyond.kinds[kind], 0.25)) / late.ranks.step_ms
    if kind is Spent.BLOCKED:
        return min(cost, often) >= MIN_SHARE_CPU_STEADY
    alone = late.usual.mean(kind) <= ALONE * (late.usual.mean(kind) + late.beyond.mean(kind))
    return cost >= MIN_SHARE_CPU and (alone or often >= MIN_SHARE_CPU_STEADY)


def _claim(late: Lateness, cause: Cause, ms: Float64, evidence: str, explained_ms: float, place: str = "") -> Claim:
    explained = explained_ms / max(float(ms.mean()), 1e-9)
    return Claim(cause, ms, MIN_SHARE, evidence, (late.record,), place, explained)


def _named(late: Lateness, times: Times, kind: Spent, ms: Float64) -> Claim:
    """By the place with most of a kind: what the device idles for or works at, or what the host does. A pause outside
    of all annotations has the operator after it."""
    if kind is Spent.BLOCKED and late.scattered:
        evidence = f"it pauses {format_ms(late.pauses_ms)} a step more than its peers, at no one place"
        return _claim(late, Cause.SLOW_HOST, late.ms, f"{evidence} between its operators", late.pauses_ms)
    label, paused = times.most(kind), kind is Spent.BLOCKED and (times is late.host or not times.most(kind).place)
    label = late.host.most(kind) if paused else label
    evidence = evidence_of(label, times.kinds[kind], late.ranks, paused=paused and label.place != "")
    return _claim(late, KINDS[label.spent][0], ms, evidence, times.mean(kind), label.place)


def _by_host(late: Lateness) -> Claim | None:
    """What the host does beyond the others while its device still works: it loses its lead, and launches late after."""
    least = MIN_SHARE * late.ranks.step_ms
    held = [kind for kind, ms in late.host.kinds.items() if ms.mean() >= least and is_steady(ms)]
    main = max(held, key=lambda kind: (late.host.mean(kind), -kind), default=None)
    if main is None:
        return None
    return _named(late, late.host, main, late.host.kinds[main] * min(1.0, late.cost_ms / late.host.mean(main)))


def _launches(late: Lateness) -> Claim | None:
    """A host that is late without a named cause: its operators take longer, or it launches more of them."""
    record, ranks = late.record, late.ranks
    if late.cost_ms <= MIN_SHARE * ranks.step_ms or not is_steady(late.ms):
        return None
    if (more := _more_kernels(late)) is not None:
        place = launching(record)
        evidence = f"it launches {more.calls / len(record.steps):.0f} of {short_name(more.name)} a step"
        evidence += f", most from {place}" if place else ""
        return _claim(late, Cause.LAUNCH_BOUND, late.ms, evidence, late.cost_ms, place)
    of_stage = record.stage is not None and not ranks.peers(record)
    own, usual = _operators_ms(late)
    if late.cost_ms < MIN_SHARE_LAUNCHES * ranks.step_ms or of_stage or own < SLOW_OPERATORS * usual or not usual:
        return None
    evidence = f"the same operators take {own / usual:.2g} times as long on its CPUs as on those of its peers"
    claim = _claim(late, Cause.SLOW_HOST, late.ms, evidence, own - usual)
    return replace(claim, share=MIN_SHARE_LAUNCHES)


def _operators_ms(late: Lateness) -> tuple[float, float]:
    """The CPU operators that all peers run: milliseconds a step here, and as they take on the median peer."""
    peers = [{op.name: op.mean_ns for op in other.operators} for other in late.ranks.others(late.record)]
    own = usual = 0.0
    for op in late.record.operators:
        known = [peer[op.name] for peer in peers if op.name in peer]
        if len(known) == len(peers) and not WAITING_OPERATOR.match(op.name):
            own += op.total_ns
            usual += op.calls * float(np.median(known))
    return own / 1e6 / len(late.record.steps), usual / 1e6 / len(late.record.steps)


def _more_kernels(late: Lateness) -> KernelGroup | None:
    """The kernel of which a rank launches more than its peers, if it launches many more altogether."""
    record, peers = late.record, late.ranks.others(late.record)
    other_stage = record.stage is not None and not late.ranks.peers(record)
    calls = [{group.key: group.calls / len(one.steps) for group in one.kernels} for one in (record, *peers)]
    own, *usual = (sum(of.values()) for of in calls)
    if not own or own < (MORE_KERNELS_OF_STAGE if other_stage else MORE_KERNELS) * float(np.median(usual)):
        return None

    def more(group: KernelGroup) -> float:
        return calls[0][group.key] - float(np.median([of.get(group.key, 0.0) for of in calls[1:]]))

    most = max(record.kernels, key=lambda group: (more(group), group.name))
    # Another stage has other blocks, so more of many kernels.
    return None if other_stage and more(most) <= (own - float(np.median(usual))) / 2 else most


def _more_synchronisations(late: Lateness) -> float:
    """By how many synchronising calls per step a rank exceeds the median of its peers; 0 if by fewer than 3."""
    others = [float(np.median(other.account.syncs)) for other in late.ranks.records if other is not late.record]
    more = float(np.median(late.record.account.syncs)) - float(np.median(others))
    return more if more >= MORE_CALLS else 0.0


def launching(record: RankRecord) -> str:
    """`aten::add_ (3,000 launches a step)`: the operator that launches most."""
    most = record.most_launches
    return "" if most is None else f"{most.name} ({most.calls / len(record.steps):,.0f} launches a step)"


def evidence_of(label: Label, ms: Float64, ranks: RankComparison, *, paused: bool = False) -> str:
    """`in 3 of 7 steps` if not in all; `paused`: the place is the operator after a pause, not an annotation."""
    where, unnamed = f" in {short_name(label.place)!r}" if label.place else "", " and no annotation is open"
    in_steps = int((ms > 0.05 * ms.max()).sum())
    what = KINDS[label.spent][1].format(
        place=label.place,
        where=where,
        idle="the device idles" if ranks.on_device else "no operator runs",
        nothing="the device idles and no thread runs an operator" if ranks.on_device else "no operator runs",
        at=f"{unnamed}, before {label.place!r}" if paused else where or unnamed,
    )
    return f"{what}: {format_ms(float(ms.mean()))} a step" + (
        f", in {in_steps} of {len(ms)} steps" * (in_steps < len(ms))
    )
