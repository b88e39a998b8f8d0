"""Verdicts from the account of the steps: which rank is late and by what, and what all ranks lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.tracing.account.kinds import HOST, Label, Spent
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.attribution import Account, Float64, account
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.confidence import confidence
from muster.tracing.verdicts.slow_hosts import late_launches, more_launches, more_synchronisations
from muster.tracing.verdicts.types import ADVICE, Cause, Verdict
from muster.tracing.verdicts.work import compare_work, describe_work
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.03  # of a step, by which a rank is late
MIN_SHARE_CAUSE = 0.015  # of a step, for the cause of that
MIN_PART = 0.05  # of the lateness, for its cause: a host that has slept launches late after that
MIN_PART_WORK = 0.05  # of the additional work, that the others wait for
MIN_SHARE_ALL = 0.10  # of a step, for what all ranks do
# Ranks on CPUs of one host preempt each other, and a process that is preempted looks like one that is blocked.
MIN_SHARE_CPU = 0.025
MIN_SHARE_CPU_STEADY = 0.05
MIN_SHARE_CPU_UNSTEADY = 0.15
REGULAR, MIN_STEPS_REGULAR = 0.2, 4  # the deviation of a pause that code makes, to its mean
ALONE = 0.1  # of a rank's time in something; the others have less
EXPLAINED = 0.5  # of the lateness, by what the device idles for: else by what the host does
ONE_PLACE = 0.5  # of the pauses of a host that is blocked in code
SILENT_PART = 0.3  # of the time in which a host runs no operator: short gaps, if it is slow and does not sleep

UNNAMED = (Spent.OPERATOR, Spent.PYTHON, Spent.UNKNOWN)
TOGETHER = {Spent.PREPROCESS: Spent.DATA}
CAUSES = {
    Spent.CHECKPOINT: Cause.CHECKPOINT,
    Spent.COPY: Cause.COPY,
    Spent.ALLOCATOR: Cause.ALLOCATOR_RETRIES,
    Spent.GARBAGE: Cause.GARBAGE_COLLECTION,
    Spent.PREPROCESS: Cause.INPUT_PREPROCESSING,
    Spent.DATA: Cause.DATA_LOADING,
    Spent.COMPILE: Cause.RECOMPILATION,
    Spent.ANNOTATION: Cause.HOST_BLOCKED,
    Spent.BLOCKED: Cause.HOST_BLOCKED,
    Spent.SYNC: Cause.HOST_SYNC,
}


def owners(ranks: RankComparison) -> Iterator[Verdict]:
    """What late ranks cost, then what all ranks lose at the same time."""
    found = account(ranks)
    against: list[Verdict] = []
    for i, record in enumerate(ranks.records if len(ranks.records) > 1 else ()):
        late = Lateness.of(ranks, found, i)
        verdict = _late_on_device(ranks, record, late) if ranks.on_device else _late_on_cpu(ranks, record, late)
        against += [] if verdict is None else [verdict]
    of_all = {verdict.cause: verdict for verdict in _of_all(ranks, found)}
    # What all ranks do takes some of them a little longer.
    against = [v for v in against if v.cause not in of_all or v.cost_ms > of_all[v.cause].cost_ms]
    yield from against
    accused = {verdict.cause for verdict in against}
    yield from (verdict for cause, verdict in of_all.items() if cause not in accused)


@dataclass(frozen=True, slots=True)
class Lateness:
    """By what a rank is late, in milliseconds per step: altogether, by kind, and the mean by label. `beyond` is what it
    spends of a kind beyond the median of the others, `usual` the mean of the others. `net` is without what the others
    are late by. `host` is what its host does beyond the median of the others, also while the device works: `BLOCKED`
    are its pauses."""

    ms: Float64
    net: Float64
    kinds: Mapping[Spent, Float64]
    labels: Mapping[Label, float]
    beyond: Mapping[Spent, Float64]
    usual: Mapping[Spent, float]
    host: Mapping[Label, Float64]

    @classmethod
    def of(cls, ranks: RankComparison, found: Account, own: int) -> Lateness:
        record, none = ranks.records[own], np.zeros(len(ranks.steps))
        kinds: defaultdict[Spent, Float64] = defaultdict(lambda: none)
        beyond: defaultdict[Spent, Float64] = defaultdict(lambda: none)
        usual: defaultdict[Spent, float] = defaultdict(float)
        labels = {}
        late = np.zeros((len(ranks.records), len(none)))
        for loss in found.losses:
            late[found.ranks.index(loss.rank)] += loss.ms
            if loss.rank == record.rank:
                kind = TOGETHER.get(loss.label.spent, loss.label.spent)
                kinds[kind] = kinds[kind] + loss.ms
                labels[loss.label] = float(loss.ms.mean())
        peers = {peer.rank for peer in ranks.peers(record) or ranks.records} - {record.rank}
        others = [i for i, other in enumerate(ranks.records) if other.rank in peers]
        for label, ms in found.beyond(own, others).items():
            kind = TOGETHER.get(label.spent, label.spent)
            beyond[kind] = beyond[kind] + ms
            usual[kind] += float(np.median(found.spent_ms[label][others], axis=0).mean())
        host = {
            label: ms[own] - np.median(ms[others], axis=0)
            for label, ms in found.host_ms.items()
            if label.spent in (*HOST, Spent.BLOCKED)
        }
        net = late[own] - np.median(np.delete(late, own, axis=0), axis=0)
        return cls(sum(kinds.values(), none), net, kinds, labels, beyond, usual, host)

    def place(self, kind: Spent) -> Label:
        """The label of a kind with most of it."""
        of_kind = [label for label in self.labels if TOGETHER.get(label.spent, label.spent) is kind]
        return max(of_kind, key=lambda label: (self.labels[label], label.place), default=Label(kind))

    def place_of_host(self, kind: Spent) -> Label:
        """The same of what the host does: of a pause the operator after it."""
        of_kind = [label for label in self.host if TOGETHER.get(label.spent, label.spent) is kind]
        return max(of_kind, key=lambda label: (self.host[label].mean(), label.place), default=Label(kind))

    @property
    def pauses(self) -> float:
        """How much longer the host pauses a step than the others."""
        return sum(max(float(ms.mean()), 0.0) for label, ms in self.host.items() if label.spent is Spent.BLOCKED)

    @property
    def scattered(self) -> bool:
        """Whether most of the host's pauses are at no one place: code pauses before the same operator."""
        most = self.host.get(self.place_of_host(Spent.BLOCKED))
        return most is not None and float(most.mean()) < ONE_PLACE * self.pauses

    @property
    def steady(self) -> bool:
        """Whether lateness is beyond its variation between steps; of two ranks each may be late now and then."""
        return is_steady(self.net)


def is_steady(ms: Float64) -> bool:
    """Whether a mean exceeds its variation between steps."""
    return bool(ms.mean() > 1.5 * ms.std(ddof=1) / np.sqrt(len(ms)) + 1e-9) if len(ms) > 1 else True


def _late_on_device(ranks: RankComparison, record: RankRecord, late: Lateness) -> Verdict | None:
    """The kind of time that made a rank late."""
    cost, step_ms = float(late.ms.mean()), ranks.step_ms
    # Stages have work of their own: `stage_imbalance` compares it.
    own_work = record.stage is not None and not ranks.peers(record)
    if cost < MIN_SHARE * step_ms:
        return None if own_work else _more_work(ranks, record, late)
    named = {spent: ms for spent, ms in late.kinds.items() if spent not in (*UNNAMED, *([Spent.COMPUTE] * own_work))}
    main = max(named, key=lambda spent: (named[spent].mean(), -spent), default=None)
    launches = late_launches(ranks, record, late.ms)
    if main in (None, Spent.BLOCKED, Spent.SYNC) and launches is not None:
        return launches
    syncs, after_syncs = more_synchronisations(ranks, record), float(late.kinds[Spent.SYNC].mean())
    if syncs and main in (None, Spent.SYNC, Spent.COMPUTE, Spent.BLOCKED) and after_syncs > 0:
        main = main if main is Spent.BLOCKED and named[main].mean() > after_syncs else Spent.SYNC
    elif main is None or named[main].mean() < max(MIN_SHARE_CAUSE * step_ms, MIN_PART * cost):
        return launches or _late_by_host(ranks, record, late)
    if named[main].mean() < EXPLAINED * cost and (by_host := _late_by_host(ranks, record, late)) is not None:
        return by_host
    if not late.steady and (main is Spent.COMPUTE or cost < 2 * MIN_SHARE * step_ms):
        return None
    if main is Spent.COMPUTE:
        return describe_work(ranks, record, late.ms)
    if main is Spent.BLOCKED and late.scattered:
        return _scattered(ranks, record, late)
    verdict = _named(ranks, record, late, main, late.ms)
    if verdict.cause is Cause.HOST_SYNC and syncs:
        more = f", {syncs:.0f} more synchronising calls a step than its peers"
        return replace(verdict, evidence=verdict.evidence + more)
    return verdict


def _scattered(ranks: RankComparison, record: RankRecord, late: Lateness) -> Verdict:
    evidence = f"it pauses {_ms(late.pauses)} a step more than its peers, at no one place between its operators"
    return _verdict(ranks, record, Cause.SLOW_HOST, evidence, late.ms, late.pauses)


def _late_by_host(ranks: RankComparison, record: RankRecord, late: Lateness) -> Verdict | None:
    """What the host does beyond the others while its device still works: it loses its lead, and launches late after."""
    kinds: defaultdict[Spent, Float64] = defaultdict(lambda: np.zeros(len(ranks.steps)))
    for label, ms in late.host.items():
        kinds[TOGETHER.get(label.spent, label.spent)] = kinds[TOGETHER.get(label.spent, label.spent)] + ms
    held = {kind: ms for kind, ms in kinds.items() if ms.mean() >= MIN_SHARE * ranks.step_ms and is_steady(ms)}
    if not held:
        return None
    main = max(held, key=lambda kind: (held[kind].mean(), -kind))
    if main is Spent.BLOCKED and late.scattered:
        return _scattered(ranks, record, late)
    label, ms = late.place_of_host(main), held[main] * min(1.0, float(late.ms.mean() / held[main].mean()))
    evidence = _evidence(label, held[main], on_device=ranks.on_device, paused=main is Spent.BLOCKED)
    return replace(
        _verdict(ranks, record, CAUSES[label.spent], evidence, ms, float(held[main].mean())), place=label.place
    )


def _more_work(ranks: RankComparison, record: RankRecord, late: Lateness) -> Verdict | None:
    """More or larger kernels are known by their number and grids also where the others compute beside the collective in
    which they wait; then they wait less."""
    work = compare_work(ranks, record)
    if work is None or late.ms.mean() <= 0 or not late.steady:
        return None
    cost = max(work.ms[Cause.EXTRA_KERNELS], work.ms[Cause.LARGER_INPUT])
    if cost < MIN_SHARE * ranks.step_ms or late.ms.mean() < MIN_PART_WORK * cost:
        return None
    return describe_work(ranks, record, late.ms, cost_ms=cost)


def _late_on_cpu(ranks: RankComparison, record: RankRecord, late: Lateness) -> Verdict | None:
    """Times of operators depend on the other processes: work counts by its calls, and gaps only in most steps."""
    step_ms, none = ranks.step_ms, np.zeros(len(ranks.steps))
    gaps = sum((late.beyond[kind] for kind in UNNAMED), none)
    silent = gaps + late.beyond[Spent.BLOCKED]
    often = float(np.quantile(gaps, 0.25))
    much = float(silent.mean()) >= 2 * MIN_SHARE_CPU_STEADY * step_ms
    if much and often >= MIN_SHARE_CPU * step_ms and gaps.mean() >= SILENT_PART * silent.mean():
        if _is_regular(late, step_ms) and late.pauses >= EXPLAINED * silent.mean():
            return _named(ranks, record, late, Spent.BLOCKED, late.ms)
        evidence = f"{_ms(float(silent.mean()))} a step more than on its peers pass between its operators"
        return _verdict(ranks, record, Cause.SLOW_HOST, evidence, late.ms, float(silent.mean()))
    if late.ms.mean() >= MIN_SHARE_CPU * step_ms and _is_regular(late, step_ms):
        return _late_by_host(ranks, record, late)
    held = [kind for kind in late.kinds if kind in CAUSES and kind is not Spent.SYNC and _holds(late, kind, step_ms)]
    main = max(held, key=lambda kind: (late.kinds[kind].mean(), -kind), default=None)
    work = describe_work(ranks, record, late.kinds[Spent.COMPUTE])
    if main is None or (work is not None and work.cost_ms > late.kinds[main].mean()):
        return work
    return _named(ranks, record, late, main, late.kinds[main])


def _is_regular(late: Lateness, step_ms: float) -> bool:
    """Whether the host pauses as long in each step at one place: no other process does that."""
    pauses = late.host.get(late.place_of_host(Spent.BLOCKED))
    if pauses is None or len(pauses) < MIN_STEPS_REGULAR or late.scattered:
        return False
    return bool(pauses.mean() >= MIN_SHARE_CPU * step_ms and pauses.std(ddof=1) <= REGULAR * pauses.mean())


def _holds(late: Lateness, kind: Spent, step_ms: float) -> bool:
    cost, often = float(late.kinds[kind].mean()), float(np.quantile(late.beyond[kind], 0.25))
    if kind is Spent.BLOCKED:
        return min(cost, often) >= MIN_SHARE_CPU_STEADY * step_ms
    alone = late.usual[kind] <= ALONE * (late.usual[kind] + float(late.beyond[kind].mean()))
    steady = often >= MIN_SHARE_CPU_STEADY * step_ms or cost >= MIN_SHARE_CPU_UNSTEADY * step_ms
    return cost >= MIN_SHARE_CPU * step_ms and (alone or steady)


def _named(ranks: RankComparison, record: RankRecord, late: Lateness, kind: Spent, ms: Float64) -> Verdict:
    label = late.place(kind)
    paused = kind is Spent.BLOCKED and not label.place
    label = late.place_of_host(kind) if paused else label
    evidence = _evidence(label, late.kinds[kind], on_device=ranks.on_device, paused=paused and label.place != "")
    return replace(
        _verdict(ranks, record, CAUSES[label.spent], evidence, ms, float(late.kinds[kind].mean())), place=label.place
    )


def _verdict(
    ranks: RankComparison, record: RankRecord, cause: Cause, evidence: str, ms: Float64, explained_ms: float
) -> Verdict:
    sure = confidence(ms, MIN_SHARE * ranks.step_ms, explained_ms / max(float(ms.mean()), 1e-9))
    return Verdict((record.rank,), record.stage, cause, float(ms.mean()), evidence, sure, ADVICE[cause])


def _of_all(ranks: RankComparison, found: Account) -> Iterator[Verdict]:
    """What every rank spends in each step on something that can be named.

    Hosts do something at the same time, but the devices of some wait for that of another one meanwhile: the step loses
    what the slowest one idles.
    """
    by_kind: defaultdict[Spent, dict[Label, Float64]] = defaultdict(dict)
    for label, ms in found.spent_ms.items():
        by_kind[TOGETHER.get(label.spent, label.spent)][label] = ms
    for spent, labels in by_kind.items():
        label = max(labels, key=lambda label: (labels[label].mean(), label.place))
        idle = np.sum(list(labels.values()), axis=0)
        lost = idle.min(axis=0)
        # A pause in a phase of training is part of launching its work, and several ranks may wait for each other.
        if spent is Spent.BLOCKED and len(ranks.records) > 1:
            continue
        if spent is Spent.BLOCKED:
            label, lost = _paused(found, labels.get(Label(spent), np.zeros((1, 1))).min(axis=0))
        if spent not in CAUSES:
            continue
        if spent in HOST and ranks.on_device:
            hosts = [ms for label, ms in found.host_ms.items() if TOGETHER.get(label.spent, label.spent) is spent]
            least = float(np.sum(hosts, axis=0).mean(axis=1).min()) if hosts else 0.0
            most = idle[int(idle.mean(axis=1).argmax())]
            lost = most * min(1.0, least / max(float(most.mean()), 1e-9))
        cost = float(lost.mean())
        if cost < MIN_SHARE_ALL * ranks.step_ms:
            continue
        cause, paused = CAUSES[label.spent], spent is Spent.BLOCKED
        evidence = _evidence(label, lost, on_device=ranks.on_device, paused=paused)
        who = (ranks.records[0].rank,) if len(ranks.records) == 1 else ()
        sure = confidence(lost, MIN_SHARE_ALL * ranks.step_ms)
        yield Verdict(who, None, cause, cost, evidence, sure, ADVICE[cause], label.place)


def _paused(found: Account, idle: Float64) -> tuple[Label, Float64]:
    """The place before which all hosts pause longest, if most of their pauses are there, and what is lost by that."""
    pauses = {label: ms.min(axis=0) for label, ms in found.host_ms.items() if label.spent is Spent.BLOCKED}
    most = max(pauses, key=lambda label: (pauses[label].mean(), label.place), default=Label(Spent.BLOCKED))
    total = sum(float(ms.mean()) for ms in pauses.values())
    if not pauses or pauses[most].mean() < ONE_PLACE * total:
        return most, np.zeros(len(idle))
    return most, np.minimum(idle, pauses[most])


def launch_bound(ranks: RankComparison) -> Sequence[Verdict]:
    """Small kernels, and devices that idle most of the time behind hosts that launch them, on all ranks."""
    unnamed = (ms for label, ms in account(ranks).spent_ms.items() if label.spent in UNNAMED)
    lost = np.sum(list(unnamed), axis=0).min(axis=0)
    found = more_launches(ranks, lost)
    return () if found is None else (found,)


def _evidence(label: Label, ms: Float64, *, on_device: bool, paused: bool = False) -> str:
    """`in 3 of 7 steps` if not in all; `paused`: the place is the operator after a pause, not an annotation."""
    where = f" in {short_name(label.place)!r}" if label.place else ""
    in_steps = int((ms > 0.05 * ms.max()).sum())
    often = f", in {in_steps} of {len(ms)} steps" if in_steps < len(ms) else ""
    idle = "the device idles while the host is" if on_device else "no operator runs while the host is"
    nothing = "the device idles and no thread runs an operator" if on_device else "no operator runs"
    unnamed = " and no annotation is open"
    what = {
        Spent.CHECKPOINT: f"saving{where}",
        Spent.COPY: f"copies ({label.place})" if label.place else "copies",
        Spent.ALLOCATOR: f"device memory is allocated and freed{where}",
        Spent.GARBAGE: f"Python collects garbage{where}",
        Spent.PREPROCESS: f"operators of the CPU, most in {label.place}",
        Spent.DATA: f"{idle}{where}",
        Spent.COMPILE: f"compilation{where}",
        Spent.ANNOTATION: f"{idle}{where}",
        Spent.BLOCKED: nothing
        + (f" and no annotation is open, before {label.place!r}" if paused else where or unnamed),
        Spent.SYNC: "the device idles after synchronising calls",
    }[label.spent]
    return f"{what}: {_ms(float(ms.mean()))} a step{often}"


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)
