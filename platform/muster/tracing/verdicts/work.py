"""The compute work of ranks side by side: more of it, larger, slower, or unevenly split between stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.rank_record import KernelGroup, RankRecord, elements
from muster.tracing.formatting import format_ms, format_percent
from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.lateness import Lateness
from muster.tracing.verdicts.types import Cause, Claim
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.05  # of a step, for work that is known by its calls
MIN_SHARE_LATE = 0.03
MIN_PART_WORK = 0.05  # of the additional work, that the others wait for
LARGER_PART = 0.05  # of the kernels' time that must have other grids, for a larger input
SLOWER_RATIO = 1.04  # the same kernels on another device of the same kind vary less
SLOWER_ON_CPU = 1.2  # times as long as on the peers; most operators are small and do not depend on the input
MOST_OPERATORS = 1.1
LARGER_SHAPES = 1.05  # times as many elements in the tensors of an operator
IMBALANCE_RATIO = 1.35  # embedding and head make stages of an even split differ


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """Milliseconds a step by which a rank's kernels exceed those of its peers, and the kernel with most of it."""

    ms: Mapping[Cause, float]
    slower_ratio: float
    most: str
    larger_shape: str
    """`: aten::mm of 20480 x 1024, not 16384 x 1024`, if that is known."""


def compare_work(ranks: RankComparison, record: RankRecord) -> WorkDifference | None:
    """By the kernels of the other ranks with the same work, or of the other inner stages in the ratio of the median
    kernel; on the CPU by its operators, of which only the number and the usual time are known. None without either."""
    same = ranks.others(record) if record.stage is None else ranks.peers(record)
    peers = same or ranks.inner_stages(record)
    if not peers:
        return None
    own = {group.key: group for group in record.kernels}
    others = [{group.key: group for group in peer.kernels} for peer in peers]
    steps, peer_steps = len(record.steps), [len(peer.steps) for peer in peers]
    usual_calls = {
        key: float(np.median([_calls(of.get(key), n) for of, n in zip(others, peer_steps, strict=True)]))
        for key in {*own, *(key for of in others for key in of)}
    }
    shared = [_calls(own[key], steps) / calls for key, calls in usual_calls.items() if calls and key in own]
    scale = 1.0 if same or not shared else float(np.median(shared))
    slower = usual = balance = 0.0
    calls: defaultdict[str, float] = defaultdict(float)
    time: defaultdict[str, float] = defaultdict(float)
    ratios: list[tuple[float, int]] = []
    for key, usually in usual_calls.items():
        group = own.get(key)
        known = [_mean_ns(of[key]) for of in others if key in of and of[key].alone]
        mean = [*([_mean_ns(group)] if group is not None and group.alone else []), *known]
        more = _calls(group, steps) - scale * usually
        balance += more
        if mean:
            calls[key[0]] += more
            time[key[0]] += more * float(np.median(mean)) / 1e6
        if group is not None and group.alone and len(known) == len(peers):
            typical = float(np.median(known))
            slower += group.alone * (_mean_ns(group) - typical)
            usual += group.alone * typical
            ratios.append((_mean_ns(group) / max(typical, 1.0), group.calls))
    # Kernels of one name whose calls are as many and whose grids differ have another size of input; a library may also
    # choose another kernel for it. Then those whose grid does not depend on the size take longer for the same reason.
    larger = sum(ms for name, ms in time.items() if abs(calls[name]) < 0.5)
    extra = sum(time.values()) - larger
    whole = sum(group.alone_ns for group in record.kernels) / 1e6 / steps
    as_many = abs(balance) < 0.02 * sum(group.calls for group in record.kernels) / steps
    slower_ms, ratio = slower / 1e6 / steps, 1 + slower / usual if usual else 1.0
    shape = _larger_shape(record, peers)
    if as_many and larger > 0 and larger + extra >= LARGER_PART * whole:
        larger, extra, slower_ms = larger + extra + slower_ms, 0.0, 0.0
    elif not ranks.on_device:
        # Of two ranks alone either may be slowed down by other processes, unless shapes say that its input is larger.
        is_larger = len(peers) > 1 and ratio >= SLOWER_ON_CPU and _median_of_calls(ratios) <= MOST_OPERATORS
        larger, slower_ms = slower_ms if as_many and (is_larger or shape) else 0.0, 0.0
    ms = {Cause.LARGER_INPUT: larger, Cause.EXTRA_KERNELS: extra, Cause.SLOW_DEVICE: slower_ms}
    return WorkDifference(ms, ratio, max(time, key=lambda name: (time[name], name), default=""), shape)


def _larger_shape(record: RankRecord, peers: Sequence[RankRecord]) -> str:
    """The operator with the largest input that is larger than that of all peers; empty if none is, or shapes are not
    recorded."""
    larger = []
    for operator, sizes in record.inputs.items():
        known = [peer.inputs.get(operator, ()) for peer in peers]
        if all(len(of) == len(sizes) and elements(sizes) >= LARGER_SHAPES * elements(of) for of in known):
            larger.append((elements(sizes), operator, max(known, key=elements)))
    if not larger:
        return ""
    _, operator, usual = max(larger)
    at = next(i for i, of in enumerate(record.inputs[operator]) if of != usual[i])
    own, other = (" x ".join(map(str, sizes[at])) for sizes in (record.inputs[operator], usual))
    return f": {operator} of {own}, not {other}"


def _calls(group: KernelGroup | None, steps: int) -> float:
    return group.calls / steps if group is not None else 0.0


def _mean_ns(group: KernelGroup) -> float:
    return group.alone_ns / group.alone


def _median_of_calls(ratios: Sequence[tuple[float, int]]) -> float:
    ordered = sorted(ratios)
    counts = np.cumsum([calls for _, calls in ordered])
    return ordered[int(np.searchsorted(counts, counts[-1] / 2))][0] if ordered else 1.0


def slower_work(late: Lateness, ms: Float64) -> Claim | None:
    """The work that made a rank late by so many milliseconds; on the CPU, where only calls are known, what it takes."""
    work = compare_work(late.ranks, late.record)
    if work is None:
        return None
    on_device = late.ranks.on_device
    cause, cost = max(work.ms.items(), key=lambda item: (item[1], item[0]))
    if cost <= (0 if on_device else MIN_SHARE * late.ranks.step_ms) or (
        cause is Cause.SLOW_DEVICE and work.slower_ratio < SLOWER_RATIO
    ):
        return None
    longer, kernels = format_percent(work.slower_ratio - 1), "kernels" if on_device else "operators"
    most = f"{format_ms(cost)} a step, most in {short_name(work.most)}"
    evidence = {
        Cause.EXTRA_KERNELS: f"its peers do not run some {kernels}: {most}",
        Cause.LARGER_INPUT: f"its kernels have larger grids: {most}"
        if on_device
        else f"its large operators take longer than on its peers, together {longer}, and the small ones do not",
        Cause.SLOW_DEVICE: f"the same kernels with the same grids take {longer} longer "
        "than on its peers, without a collective beside them",
    }[cause] + (work.larger_shape if cause is Cause.LARGER_INPUT else "")
    ms = ms if on_device else np.full(len(ms), cost)
    place = work.most if cause is not Cause.SLOW_DEVICE and on_device else ""
    return Claim(cause, ms, MIN_SHARE_LATE, evidence, (late.record,), place)


def more_work(late: Lateness) -> Claim | None:
    """More or larger kernels are known by their number and grids also where the others compute beside the collective in
    which they wait; then they wait less."""
    work = compare_work(late.ranks, late.record)
    if work is None or late.cost_ms <= 0 or not late.steady:
        return None
    cost = max(work.ms[Cause.EXTRA_KERNELS], work.ms[Cause.LARGER_INPUT])
    if cost < MIN_SHARE_LATE * late.ranks.step_ms or late.cost_ms < MIN_PART_WORK * cost:
        return None
    return slower_work(late, np.full(len(late.ms), cost))


def extra_work_of_stages(ranks: RankComparison) -> Iterator[Claim]:
    """Work of a stage that those with the same blocks do not have, or that precedes its first forward pass."""
    for record in ranks.records if any(record.stage is not None for record in ranks.records) else ():
        if (work := compare_work(ranks, record)) is not None:
            ms = work.ms[Cause.EXTRA_KERNELS]
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
    compute_ms = measured if ranks.on_device else _usual_compute_ms(ranks)
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


def _usual_compute_ms(ranks: RankComparison) -> dict[int, float]:
    """The compute of each rank if each call took as long as on the median rank: without the load of the CPUs."""
    known: defaultdict[str, list[float]] = defaultdict(list)
    for record in ranks.records:
        for op in record.work:
            known[op.name].append(op.mean_ns)
    usual = {name: float(np.median(means)) for name, means in known.items()}
    return {
        record.rank: sum(op.calls * usual[op.name] for op in record.work) / 1e6 / len(record.steps)
        for record in ranks.records
    }
