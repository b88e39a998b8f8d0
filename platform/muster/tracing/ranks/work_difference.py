"""The compute work of a rank beside that of others: more of it, larger or slower."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.rank_record import KernelGroup, RankRecord, elements
from muster.tracing.ranks.rank_comparison import RankComparison

LARGER_PART = 0.05  # of the kernels' time that must have other grids, for a larger input
SLOWER_ON_CPU = 1.2  # times as long as on the peers; most operators are small and do not depend on the input
MOST_OPERATORS = 1.1
LARGER_SHAPES = 1.05  # times as many elements in the tensors of an operator


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """Milliseconds a step by which a rank's kernels exceed those of its peers: by kernels that these do not run, by
    larger grids, and by taking longer, in which ratio; and the kernel with most of it."""

    extra_ms: float
    larger_ms: float
    slower_ms: float
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
    most = max(time, key=lambda name: (time[name], name), default="")
    return WorkDifference(extra, larger, slower_ms, ratio, most, shape)


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


def usual_compute_ms(ranks: RankComparison) -> dict[int, float]:
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
