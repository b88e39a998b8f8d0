"""Verdicts from the account of the steps: who is late, by what, and what all ranks lose."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.kinds import Label, Spent
from muster.tracing.account.rank_record import KernelGroup, RankRecord
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.ranks.attribution import Account, Float64, account
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.types import Cause, Verdict
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.03  # of a step, for a cause that is recorded by name
MIN_SHARE_UNNAMED = 0.10  # of a step, for a host that is late between operators: launching varies by itself
MIN_SHARE_ALL = 0.10  # of a step, for what all ranks do
LAUNCH_BOUND_SHARE = 0.4  # of a step
SMALL_KERNEL_US = 20.0
MIN_SHARE_NAMED = 0.015  # of a step, for the cause of a rank's lateness
MIN_PART = 0.05  # of the lateness
SLOW_OPERATORS = 1.3  # times as long as on the peers
MORE_KERNELS = 1.2  # times as many as the peers
LARGER_PART = 0.05  # of the kernels' time that must have other grids, for a larger input
SLOWER_RATIO = 1.04  # the same kernels on another device of the same kind vary less

WAITING_OPERATOR = re.compile(r"aten::(item|_local_scalar_dense|copy_|_to_copy|to|nonzero|is_nonzero)$|c10d::|nccl:")
HOST = (Spent.BLOCKED, Spent.SYNC)
UNNAMED = (Spent.OPERATOR, Spent.PYTHON, Spent.UNKNOWN)
CAUSES = {
    Spent.CHECKPOINT: Cause.CHECKPOINT,
    Spent.COPY: Cause.COPY,
    Spent.ALLOCATOR: Cause.ALLOCATOR_RETRIES,
    Spent.DATA: Cause.DATA_LOADING,
    Spent.COMPILE: Cause.RECOMPILATION,
    Spent.ANNOTATION: Cause.HOST_BLOCKED,
    Spent.BLOCKED: Cause.HOST_BLOCKED,
    Spent.SYNC: Cause.HOST_SYNC,
}
ADVICE = {
    Cause.DATA_LOADING: "Try more DataLoader workers, prefetching, or faster storage",
    Cause.CHECKPOINT: "Save asynchronously (torch.distributed.checkpoint.async_save) or less often",
    Cause.HOST_BLOCKED: "Look at the code there: sleeps, I/O, locks, or a host with too few CPUs",
    Cause.COPY: "Use pinned memory and non_blocking=True, copy less often, or keep the data on the device",
    Cause.ALLOCATOR_RETRIES: "Do not call empty_cache() in a step; "
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less memory",
    Cause.RECOMPILATION: "See TORCH_LOGS=recompiles; mark changing sizes with torch._dynamo.mark_dynamic, or pad them",
    Cause.HOST_SYNC: "Avoid .item(), .cpu(), print and nonzero() of device tensors within a step",
    Cause.LAUNCH_BOUND: "Use torch.compile, CUDA graphs, or foreach and fused operators",
    Cause.SLOW_HOST: "Check the CPUs of this rank: other processes, threads of its own, affinity, frequency",
    Cause.SLOW_DEVICE: "Check clocks, temperature, power limit and other processes on this device (nvidia-smi -q)",
    Cause.EXTRA_KERNELS: "Look for work that only this rank does, such as logging, metrics or another model",
    Cause.LARGER_INPUT: "Give ranks batches of equal size: pad, bucket by length, or balance tokens",
}


def owners(ranks: RankComparison) -> Iterator[Verdict]:
    """What late ranks cost, then what all ranks lose at the same time."""
    found = account(ranks)
    records = ranks.records if len(ranks.records) > 1 else ()
    against = [verdict for record in records if (verdict := _late(ranks, found, record)) is not None]
    of_all = {verdict.cause: verdict for verdict in _of_all(ranks, found)}
    # What all ranks do takes some of them a little longer.
    against = [v for v in against if v.cause not in of_all or v.cost_ms > of_all[v.cause].cost_ms]
    yield from against
    accused = {verdict.cause for verdict in against}
    yield from (verdict for cause, verdict in of_all.items() if cause not in accused)


def _late(ranks: RankComparison, found: Account, record: RankRecord) -> Verdict | None:
    """The verdict on one rank: the kind of time that made it late."""
    kinds: defaultdict[Spent, Float64] = defaultdict(lambda: np.zeros(len(ranks.steps)))
    places: defaultdict[Spent, dict[str, float]] = defaultdict(dict)
    for loss in found.losses:
        if loss.rank == record.rank:
            kinds[loss.label.spent] += loss.ms
            places[loss.label.spent][loss.label.place] = float(loss.ms.mean())
    late = np.sum(list(kinds.values()), axis=0) if kinds else np.zeros(len(ranks.steps))
    if late.mean() < MIN_SHARE * ranks.step_ms:
        return None
    # Stages have work of their own: `stage_imbalance` compares it.
    own_work = record.stage is not None and not ranks.peers(record)
    named = {spent: ms for spent, ms in kinds.items() if spent not in (*UNNAMED, *([Spent.COMPUTE] * own_work))}
    main = max(named, key=lambda spent: (named[spent].mean(), -spent), default=None)
    if main in (None, *HOST) and not own_work and _is_slow_host(ranks, record):
        return _late_host(ranks, record, late)
    syncs = _more_syncs(ranks, record)
    if syncs and main in (None, Spent.SYNC, Spent.COMPUTE, Spent.BLOCKED) and kinds[Spent.SYNC].mean() > 0:
        main = Spent.SYNC
    # A host that waits for a copy or sleeps loses its lead: after that each launch is late too.
    elif main is None or named[main].mean() < max(MIN_SHARE_NAMED * ranks.step_ms, MIN_PART * late.mean()):
        return _late_host(ranks, record, late)
    cost = float(late.mean())
    if not _steady(late) and (main is Spent.COMPUTE or cost < 2 * MIN_SHARE * ranks.step_ms):
        return None
    if main is Spent.COMPUTE:
        return _late_device(ranks, record, late)
    place = max(places[main], key=lambda name: (places[main][name], name), default="")
    cause = CAUSES[main]
    evidence = _evidence(
        main, place, float(kinds[main].mean()), len(ranks.steps), int((late > 0.01 * late.max()).sum())
    )
    if cause is Cause.HOST_SYNC and syncs:
        evidence += f", {syncs:.0f} more synchronising calls a step than its peers"
    return Verdict((record.rank,), record.stage, cause, cost, evidence, _confidence(late, ranks.step_ms), ADVICE[cause])


def _late_host(ranks: RankComparison, record: RankRecord, late: Float64) -> Verdict | None:
    """A host that is late without a named cause: its operators take longer, or it launches more of them."""
    cost = float(late.mean())
    if cost < MIN_SHARE_UNNAMED * ranks.step_ms or not _steady(late):
        return None
    if record.stage is not None and not ranks.peers(record):
        return None
    if (more := _more_kernels(ranks, record)) is not None:
        cause = Cause.LAUNCH_BOUND
        evidence = f"it launches {more.calls / len(record.steps):.0f} of {short_name(more.name)} a step"
    elif (ratio := _operator_ratio(ranks, record)) >= SLOW_OPERATORS:
        cause = Cause.SLOW_HOST
        evidence = f"the same operators take {ratio:.2g} times as long on its CPUs as on those of its peers"
    else:
        return None
    confidence = _confidence(late, ranks.step_ms)
    return Verdict((record.rank,), record.stage, cause, cost, evidence, confidence, ADVICE[cause])


def _is_slow_host(ranks: RankComparison, record: RankRecord) -> bool:
    return _operator_ratio(ranks, record) >= SLOW_OPERATORS or _more_kernels(ranks, record) is not None


def _operator_ratio(ranks: RankComparison, record: RankRecord) -> float:
    """How much longer the CPU operators of a rank take than the same ones of its peers, weighted by their time."""
    peers = [
        {op.name: op for op in other.operators}
        for other in ranks.peers(record) or [other for other in ranks.records if other is not record]
    ]
    own = usual = 0.0
    for op in record.operators:
        known = [peer[op.name].mean_ns for peer in peers if op.name in peer]
        if len(known) == len(peers) and not WAITING_OPERATOR.match(op.name):
            own += op.total_ns
            usual += op.calls * float(np.median(known))
    return own / usual if usual else 1.0


def _more_kernels(ranks: RankComparison, record: RankRecord) -> KernelGroup | None:
    """The kernel of which a rank launches more than its peers, if it launches many more altogether."""
    peers = ranks.peers(record) or [other for other in ranks.records if other is not record]
    usual = [sum(group.calls for group in peer.kernels) / len(peer.steps) for peer in peers]
    own = sum(group.calls for group in record.kernels) / len(record.steps)
    if not own or own < MORE_KERNELS * float(np.median(usual)):
        return None
    of_peers = [{(group.name, group.grid): group.calls / len(peer.steps) for group in peer.kernels} for peer in peers]

    def more(group: KernelGroup) -> float:
        key = (group.name, group.grid)
        return group.calls / len(record.steps) - float(np.median([calls.get(key, 0.0) for calls in of_peers]))

    return max(record.kernels, key=lambda group: (more(group), group.name))


def _late_device(ranks: RankComparison, record: RankRecord, late: Float64) -> Verdict | None:
    """More kernels, larger ones, or slower ones."""
    work = _compare_work(record, ranks.peers(record) or [other for other in ranks.records if other is not record])
    cause, ms = max(work.ms.items(), key=lambda item: (item[1], item[0]))
    if ms <= 0:
        return None
    if cause is Cause.SLOW_DEVICE and work.slower_ratio < SLOWER_RATIO:
        return None
    evidence = {
        Cause.EXTRA_KERNELS: f"{_ms(ms)} a step in kernels that its peers do not run, most in {short_name(work.most)}",
        Cause.LARGER_INPUT: f"its kernels have larger grids, {_ms(ms)} a step, most in {short_name(work.most)}",
        Cause.SLOW_DEVICE: f"the same kernels with the same grids take {format_percent(work.slower_ratio - 1)} longer "
        "than on its peers, without a collective beside them",
    }[cause]
    return Verdict(
        (record.rank,),
        record.stage,
        cause,
        float(late.mean()),
        evidence,
        _confidence(late, ranks.step_ms),
        ADVICE[cause],
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Milliseconds a step by which a rank's kernels exceed those of its peers, and the kernel with most of it."""

    ms: Mapping[Cause, float]
    slower_ratio: float
    most: str


def _compare_work(record: RankRecord, peers: Sequence[RankRecord]) -> _Work:
    own = {(group.name, group.grid): group for group in record.kernels}
    others = [{(group.name, group.grid): group for group in peer.kernels} for peer in peers]
    steps, peer_steps = len(record.steps), [len(peer.steps) for peer in peers]
    slower = usual = balance = 0.0
    calls: defaultdict[str, float] = defaultdict(float)
    time: defaultdict[str, float] = defaultdict(float)
    for key in {*own, *(key for other in others for key in other)}:
        group, of_peers = own.get(key), [other.get(key) for other in others]
        mean = [_mean_ns(g) for g in (group, *of_peers) if g is not None and g.alone]
        per_step = float(np.median([g.calls / n if g else 0.0 for g, n in zip(of_peers, peer_steps, strict=True)]))
        more = (group.calls / steps if group else 0.0) - per_step
        balance += more
        if mean:
            calls[key[0]] += more
            time[key[0]] += more * float(np.median(mean)) / 1e6
        known = [_mean_ns(g) for g in of_peers if g is not None and g.alone]
        if group is not None and group.alone and len(known) == len(peers):
            typical = float(np.median(known))
            slower += group.alone * (_mean_ns(group) - typical)
            usual += group.alone * typical
    # Kernels of one name whose calls are as many and whose grids differ have another size of input; a library may also
    # choose another kernel for it. Then those whose grid does not depend on the size take longer for the same reason.
    larger = {name: ms for name, ms in time.items() if abs(calls[name]) < 0.5}
    extra = {name: ms for name, ms in time.items() if name not in larger}
    whole = sum(group.alone_ns for group in record.kernels) / 1e6 / steps
    as_many = abs(balance) < 0.02 * sum(group.calls for group in record.kernels) / steps
    if as_many and sum(larger.values()) > 0 and sum(time.values()) >= LARGER_PART * whole:
        larger, extra, slower = {**time, "the same kernels": slower / 1e6 / steps}, {}, 0.0
    ms = {
        Cause.LARGER_INPUT: sum(larger.values()),
        Cause.EXTRA_KERNELS: sum(extra.values()),
        Cause.SLOW_DEVICE: slower / 1e6 / steps,
    }
    return _Work(ms, 1 + slower / usual if usual else 1.0, max(time, key=lambda name: (time[name], name), default=""))


def _mean_ns(group: KernelGroup) -> float:
    return group.alone_ns / group.alone


def _of_all(ranks: RankComparison, found: Account) -> Iterator[Verdict]:
    """What every rank spends in each step on something that can be named."""
    by_kind: defaultdict[Spent, dict[Label, Float64]] = defaultdict(dict)
    for label, ms in found.spent_ms.items():
        by_kind[label.spent][label] = ms
    for spent, labels in by_kind.items():
        cause = CAUSES.get(spent)
        # Python between the operators of all ranks is part of launching them.
        if cause is None or spent is Spent.BLOCKED:
            continue
        least = np.sum(list(labels.values()), axis=0).min(axis=0)
        cost = float(least.mean())
        if cost < MIN_SHARE_ALL * ranks.step_ms:
            continue
        place = max(labels, key=lambda label: (labels[label].mean(), label.place)).place
        evidence = _evidence(spent, place, cost, len(ranks.steps), int((least > 0.1 * least.max()).sum()))
        who = (ranks.records[0].rank,) if len(ranks.records) == 1 else ()
        yield Verdict(who, None, cause, cost, evidence, 0.9, ADVICE[cause])


def launch_bound(ranks: RankComparison) -> Sequence[Verdict]:
    """Small kernels, and devices that idle most of the time behind hosts that launch them, on all ranks."""
    unnamed = (ms for label, ms in account(ranks).spent_ms.items() if label.spent in UNNAMED)
    cost = float(np.sum(list(unnamed), axis=0).min(axis=0).mean())
    calls = sum(op.calls for record in ranks.records for op in record.work)
    mean_us = sum(op.total_ns for record in ranks.records for op in record.work) / max(calls, 1) / 1e3
    if cost < LAUNCH_BOUND_SHARE * ranks.step_ms or not 0 < mean_us < SMALL_KERNEL_US:
        return ()
    evidence = f"the devices idle {_ms(cost)} a step, and a kernel takes {format_seconds(mean_us / 1e6)} on average"
    return (Verdict((), None, Cause.LAUNCH_BOUND, cost, evidence, 0.7, ADVICE[Cause.LAUNCH_BOUND]),)


def _more_syncs(ranks: RankComparison, record: RankRecord) -> float:
    """By how many synchronising calls per step a rank exceeds the median of its peers; 0 if by fewer than 3."""
    others = [float(np.median(other.account.syncs)) for other in ranks.records if other is not record]
    more = float(np.median(record.account.syncs)) - float(np.median(others)) if others else 0.0
    return more if more >= 3 else 0.0


def _steady(late: Float64) -> bool:
    """Whether lateness is beyond its variation between steps."""
    return bool(late.mean() > 1.5 * late.std(ddof=1) / np.sqrt(len(late)) + 1e-9) if len(late) > 1 else True


def _confidence(late: Float64, step_ms: float) -> float:
    """From the number of steps, the spread between them, and the distance to the threshold."""
    error = late.std(ddof=1) / np.sqrt(len(late)) if len(late) > 1 else late.mean() / 2
    distance = (late.mean() - MIN_SHARE * step_ms) / (error + 0.01 * step_ms)
    return round(float(0.5 + 0.45 * (1 - np.exp(-distance / 2))), 2)


def _evidence(spent: Spent, place: str, ms: float, steps: int, in_steps: int) -> str:
    where = f" in {place!r}" if place else ""
    often = f", in {in_steps} of {steps} steps" if in_steps < steps else ""
    what = {
        Spent.CHECKPOINT: f"saving{where}",
        Spent.COPY: f"copies ({place})" if place else "copies",
        Spent.ALLOCATOR: f"device memory is allocated and freed{where}",
        Spent.DATA: f"the device idles while the host is{where}",
        Spent.COMPILE: f"compilation{where}",
        Spent.ANNOTATION: f"the device idles while the host is{where}",
        Spent.BLOCKED: f"the device idles and no thread runs an operator{where}",
        Spent.SYNC: "the device idles after synchronising calls",
    }[spent]
    return f"{what}: {_ms(ms)} a step{often}"


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)
