"""Hosts that launch work late: their operators take longer, they launch more, or they wait for the device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from muster.tracing.account.rank_record import KernelGroup, RankRecord
from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.verdicts.confidence import confidence
from muster.tracing.verdicts.types import ADVICE, Cause, Verdict
from muster.tracing.work.operator_stats import short_name

MIN_SHARE = 0.03  # of a step, for a host that launches more: calls are counted
MIN_SHARE_LAUNCHES = 0.10  # of a step, for a host that is late between operators: launching varies by itself
LAUNCH_BOUND_SHARE = 0.4  # of a step
SMALL_KERNEL_US = 20.0
SLOW_OPERATORS = 1.3  # times as long as on the peers
MORE_KERNELS = 1.2  # times as many as the peers
MORE_KERNELS_OF_STAGE = 2.0  # times as many as another stage, which has other blocks
MORE_CALLS = 3  # synchronising calls a step
WAITING_OPERATOR = re.compile(r"aten::(item|_local_scalar_dense|copy_|_to_copy|to|nonzero|is_nonzero)$|c10d::|nccl:")


def late_launches(ranks: RankComparison, record: RankRecord, late: Float64) -> Verdict | None:
    """A host that is late without a named cause: its operators take longer, or it launches more of them."""
    cost, place, explained = float(late.mean()), "", 1.0
    spread = late.std(ddof=1) / np.sqrt(len(late)) if len(late) > 1 else 0.0
    if cost <= max(1.5 * spread, MIN_SHARE * ranks.step_ms):
        return None
    if (more := _more_kernels(ranks, record)) is not None:
        cause, place = Cause.LAUNCH_BOUND, _launching(record)
        evidence = f"it launches {more.calls / len(record.steps):.0f} of {short_name(more.name)} a step"
        evidence += f", most from {place}" if place else ""
    elif cost < MIN_SHARE_LAUNCHES * ranks.step_ms or (record.stage is not None and not ranks.peers(record)):
        return None
    elif (ratio := (operators := _slow_operators(ranks, record)).ratio) >= SLOW_OPERATORS:
        cause, explained = Cause.SLOW_HOST, operators.longer_ms / cost
        evidence = f"the same operators take {ratio:.2g} times as long on its CPUs as on those of its peers"
    else:
        return None
    sure = confidence(late, (MIN_SHARE_LAUNCHES if cause is Cause.SLOW_HOST else MIN_SHARE) * ranks.step_ms, explained)
    return Verdict((record.rank,), record.stage, cause, cost, evidence, sure, ADVICE[cause], place)


def more_launches(ranks: RankComparison, lost: Float64) -> Verdict | None:
    """All hosts launch small kernels too slowly; `lost` is what every device idles between launches."""
    calls = sum(op.calls for record in ranks.records for op in record.work)
    mean_us = sum(op.total_ns for record in ranks.records for op in record.work) / max(calls, 1) / 1e3
    if lost.mean() < LAUNCH_BOUND_SHARE * ranks.step_ms or not 0 < mean_us < SMALL_KERNEL_US:
        return None
    cost, place = float(lost.mean()), _launching(ranks.records[0])
    evidence = f"the devices idle {format_seconds(cost / 1e3)} a step, and a kernel takes"
    evidence += f" {format_seconds(mean_us / 1e6)} on average"
    evidence += f"; most are launched by {place}" if place else ""
    sure = confidence(lost, LAUNCH_BOUND_SHARE * ranks.step_ms)
    return Verdict((), None, Cause.LAUNCH_BOUND, cost, evidence, sure, ADVICE[Cause.LAUNCH_BOUND], place)


def more_synchronisations(ranks: RankComparison, record: RankRecord) -> float:
    """By how many synchronising calls per step a rank exceeds the median of its peers; 0 if by fewer than 3."""
    others = [float(np.median(other.account.syncs)) for other in ranks.records if other is not record]
    more = float(np.median(record.account.syncs)) - float(np.median(others)) if others else 0.0
    return more if more >= MORE_CALLS else 0.0


def _launching(record: RankRecord) -> str:
    """`aten::add_ (3,000 launches a step)`: the operator that launches most."""
    if record.most_launches is None:
        return ""
    return f"{record.most_launches.name} ({record.most_launches.calls / len(record.steps):,.0f} launches a step)"


@dataclass(frozen=True, slots=True)
class _SlowOperators:
    """How many times as long, and by how much a step, operators take longer than on the peers."""

    ratio: float
    longer_ms: float


def _slow_operators(ranks: RankComparison, record: RankRecord) -> _SlowOperators:
    """The CPU operators of a rank beside the same ones of its peers, weighted by their time."""
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
    return _SlowOperators(own / usual if usual else 1.0, (own - usual) / 1e6 / len(record.steps))


def _more_kernels(ranks: RankComparison, record: RankRecord) -> KernelGroup | None:
    """The kernel of which a rank launches more than its peers, if it launches many more altogether."""
    same = ranks.peers(record)
    peers = same or [other for other in ranks.records if other is not record]
    usual = [sum(group.calls for group in peer.kernels) / len(peer.steps) for peer in peers]
    own = sum(group.calls for group in record.kernels) / len(record.steps)
    many = MORE_KERNELS if same or record.stage is None else MORE_KERNELS_OF_STAGE
    if not own or own < many * float(np.median(usual)):
        return None
    of_peers = [{(group.name, group.grid): group.calls / len(peer.steps) for group in peer.kernels} for peer in peers]

    def more(group: KernelGroup) -> float:
        key = (group.name, group.grid)
        return group.calls / len(record.steps) - float(np.median([calls.get(key, 0.0) for calls in of_peers]))

    most = max(record.kernels, key=lambda group: (more(group), group.name))
    # Another stage has other blocks, so more of many kernels.
    return most if same or record.stage is None or more(most) > (own - float(np.median(usual))) / 2 else None
