"""The compute work of ranks side by side: more of it, larger, slower, or unevenly split between stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.rank_record import KernelGroup, RankRecord, elements
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.confidence import confidence
from muster.tracing.verdicts.types import ADVICE, Cause, Verdict
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.05  # of a step, for work that is known by its calls
LARGER_PART = 0.05  # of the kernels' time that must have other grids, for a larger input
SLOWER_RATIO = 1.04  # the same kernels on another device of the same kind vary less
SLOWER_ON_CPU = 1.2  # times as long as on the peers; most operators are small and do not depend on the input
MOST_OPERATORS = 1.1
LARGER_SHAPES = 1.05  # times as many elements in the tensors of an operator
IMBALANCE_RATIO = 1.35  # embedding and head make stages of an even split differ
EXCESS_BUBBLE = 0.1  # of forward and backward, above the ideal of the schedule
LARGE_IDEAL = 0.3  # of forward and backward, that a schedule leaves idle


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """Milliseconds a step by which a rank's kernels exceed those of its peers, and the kernel with most of it."""

    ms: Mapping[Cause, float]
    slower_ratio: float
    most: str


def compare_work(ranks: RankComparison, record: RankRecord) -> WorkDifference | None:
    """By the kernels of the other ranks with the same work, or of the other inner stages in the ratio of the median
    kernel; on the CPU by its operators, of which only the number and the usual time are known. None without either."""
    same = ranks.peers(record) or ([o for o in ranks.records if o is not record] if record.stage is None else [])
    peers = same or ranks.inner_stages(record)
    if not peers:
        return None
    own = {(group.name, group.grid): group for group in record.kernels}
    others = [{(group.name, group.grid): group for group in peer.kernels} for peer in peers]
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
    larger = {name: ms for name, ms in time.items() if abs(calls[name]) < 0.5}
    extra = {name: ms for name, ms in time.items() if name not in larger}
    whole = sum(group.alone_ns for group in record.kernels) / 1e6 / steps
    as_many = abs(balance) < 0.02 * sum(group.calls for group in record.kernels) / steps
    slower_ms, ratio = slower / 1e6 / steps, 1 + slower / usual if usual else 1.0
    if as_many and sum(larger.values()) > 0 and sum(time.values()) >= LARGER_PART * whole:
        larger, extra, slower_ms = {**time, "the same kernels": slower_ms}, {}, 0.0
    elif not ranks.on_device:
        # Of two ranks alone either may be slowed down by other processes, unless shapes say that its input is larger.
        is_larger = as_many and ratio >= SLOWER_ON_CPU and _median_of_calls(ratios) <= MOST_OPERATORS
        shapes = _larger_shapes(record, peers)
        is_larger = (is_larger and len(peers) > 1) or (as_many and shapes != "")
        larger, slower_ms = ({"the same operators": slower_ms} if is_larger else {}), 0.0
    ms = {
        Cause.LARGER_INPUT: sum(larger.values()),
        Cause.EXTRA_KERNELS: sum(extra.values()),
        Cause.SLOW_DEVICE: slower_ms,
    }
    return WorkDifference(ms, ratio, max(time, key=lambda name: (time[name], name), default=""))


def _larger_shapes(record: RankRecord, peers: Sequence[RankRecord]) -> str:
    """`: aten::mm of 20480 x 1024, not 16384 x 1024`: the operator with the largest input that is larger than that of
    all peers; empty if none is, or shapes are not recorded."""
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


def describe_work(
    ranks: RankComparison, record: RankRecord, late: Float64, *, cost_ms: float | None = None
) -> Verdict | None:
    """The verdict on a rank that is late by its compute; `cost_ms` if that is not its lateness."""
    work = compare_work(ranks, record)
    if work is None:
        return None
    cause, ms = max(work.ms.items(), key=lambda item: (item[1], item[0]))
    by_calls = not ranks.on_device and cause is Cause.EXTRA_KERNELS
    if ms <= (0 if ranks.on_device else MIN_SHARE * ranks.step_ms):
        return None
    if cause is Cause.SLOW_DEVICE and work.slower_ratio < SLOWER_RATIO:
        return None
    longer = format_percent(work.slower_ratio - 1)
    evidence = {
        Cause.EXTRA_KERNELS: f"{_ms(ms)} a step in kernels that its peers do not run, most in {short_name(work.most)}",
        Cause.LARGER_INPUT: f"its kernels have larger grids, {_ms(ms)} a step, most in {short_name(work.most)}"
        if ranks.on_device
        else f"its large operators take longer than on its peers, together {longer}, and the small ones do not",
        Cause.SLOW_DEVICE: f"the same kernels with the same grids take {longer} longer "
        "than on its peers, without a collective beside them",
    }[cause]
    if not ranks.on_device:
        evidence = evidence.replace("kernels", "operators")
    if cause is Cause.LARGER_INPUT:
        evidence += _larger_shapes(record, ranks.peers(record) or [o for o in ranks.records if o is not record])
    cost = cost_ms if cost_ms is not None else ms if by_calls or not ranks.on_device else float(late.mean())
    sure = confidence(np.full(len(late), cost) if by_calls else late, 0.03 * ranks.step_ms)
    place = work.most if cause is not Cause.SLOW_DEVICE and ranks.on_device else ""
    return Verdict((record.rank,), record.stage, cause, cost, evidence, sure, ADVICE[cause], place)


def extra_work_of_stages(ranks: RankComparison) -> Sequence[Verdict]:
    """Work of a stage that those with the same blocks do not have, or that precedes its first forward pass."""
    found = []
    for record in ranks.records if any(record.stage is not None for record in ranks.records) else ():
        work = compare_work(ranks, record)
        if work is None or (ms := work.ms[Cause.EXTRA_KERNELS]) < MIN_SHARE * ranks.step_ms:
            continue
        cause, sure = Cause.EXTRA_KERNELS, confidence(np.full(len(ranks.steps), ms), MIN_SHARE * ranks.step_ms)
        evidence = f"{_ms(ms)} a step, most in {short_name(work.most)}"
        found.append(Verdict((record.rank,), record.stage, cause, ms, evidence, sure, ADVICE[cause], work.most))
    imbalance = [verdict for verdict in stage_imbalance(ranks) if verdict.cause is Cause.EXTRA_KERNELS]
    return [*found, *imbalance][:1]


def stage_imbalance(ranks: RankComparison) -> Sequence[Verdict]:
    """A pipeline stage that computes longer than the others; on the CPU, which other processes use, by its calls.

    If that is due to work before its first forward pass, the work is extra.
    """
    measured = {record.rank: float(ranks.per_step(record, record.compute_ms).mean()) for record in ranks.records}
    return _imbalance(ranks, measured if ranks.on_device else _usual_compute_ms(ranks))


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
    sure = confidence(np.full(len(ranks.steps), cost), MIN_SHARE * ranks.step_ms)
    if compute[slowest] - before < IMBALANCE_RATIO * others:  # without it the stages were balanced
        evidence, cause = "it is launched before the first forward pass of a step", Cause.EXTRA_KERNELS
        return (Verdict(who, slowest, cause, before, evidence, sure, ADVICE[cause]),)
    evidence = f"{_ms(compute[slowest])} of work a step, the other stages {_ms(others)}"
    cause = Cause.STAGE_IMBALANCE
    return (Verdict(who, slowest, cause, cost, evidence, sure, ADVICE[cause]),)


def bubble(ranks: RankComparison) -> Sequence[Verdict]:
    """A pipeline that waits longer than its schedule needs, or whose schedule has too few micro-batches. On the CPU,
    Python between operators looks like the first."""
    found = ranks.pipeline_bubble()
    if found is None:
        return ()
    cost, reasons = 0.0, []
    if ranks.on_device and (excess := found.bubble - found.ideal) >= EXCESS_BUBBLE:
        cost = excess * found.phase_ms
        reasons.append(
            f"the ranks do not compute {format_percent(found.bubble)} of forward and backward; "
            f"{found.schedule} needs {format_percent(found.ideal)}"
        )
    if found.ideal >= LARGE_IDEAL:
        cost += found.phase_ms * (1 - (1 - found.ideal) / (1 - found.ideal_of_twice))
        reasons.append(
            f"{found.micro_batches} micro-batches on {found.ranks} ranks leave {format_percent(found.ideal)} idle, "
            f"twice as many {format_percent(found.ideal_of_twice)}"
        )
    if not reasons:
        return ()
    cause = Cause.PIPELINE_BUBBLE
    sure = confidence(np.full(len(ranks.steps), cost), EXCESS_BUBBLE * found.phase_ms)
    return (Verdict((), None, cause, cost, "; ".join(reasons), sure, ADVICE[cause]),)


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)
