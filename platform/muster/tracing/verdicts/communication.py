"""Detectors of communication that is not hidden, and of ranks that are late for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from muster.tracing.formatting import format_seconds
from muster.tracing.rank_comparison import MatchedCollective, RankComparison
from muster.tracing.verdicts.host import min_cost_ms
from muster.tracing.verdicts.types import Cause, Verdict

EXPOSED_SHARE = 0.25  # of a step, without waiting for late ranks
LARGE_MESSAGE_BYTES = 1 << 20
SLOW_BUS_GB_S = 10.0  # less than one 100 Gbit/s link
LATE_STEPS = 0.6  # of the steps in which a late rank must be the one that others wait for longest


def exposed_collectives(ranks: RankComparison) -> Iterator[Verdict]:
    """Collectives whose transfer, without waiting for late ranks, takes a large part of the step on all devices."""
    by_cause: dict[Cause, list[MatchedCollective]] = {}
    for collective in ranks.collectives if ranks.on_device else ():
        by_cause.setdefault(_cause(collective.name), []).append(collective)
    for cause, found in by_cause.items():
        exposed_ms = sum(c.exposed_ns * len(c.ranks) for c in found) / len(ranks.records) / len(ranks.steps) / 1e6
        large = [c.bus_gb_s for c in found if c.bus_gb_s is not None and c.message_bytes >= LARGE_MESSAGE_BYTES]
        if exposed_ms < EXPOSED_SHARE * ranks.step_ms:
            continue
        evidence = f"{format_seconds(exposed_ms / 1e3)} a step of {len(found)} traced collectives"
        if large and (bandwidth := float(np.median(large))) < SLOW_BUS_GB_S:
            evidence += f", with a bus bandwidth of {bandwidth:.3g} GB/s"
            advice = "Check with nccl-tests that NCCL uses NVLink and RDMA (NCCL_DEBUG=INFO)"
            yield Verdict((), None, Cause.SLOW_NETWORK, exposed_ms, evidence, 0.8, advice)
        else:
            advice = "Prefetch earlier, use larger local batches, or shard over fewer ranks"
            yield Verdict((), None, cause, exposed_ms, evidence, 0.6, advice)


def _cause(name: str) -> Cause:
    plain = name.lower().replace("_", "").replace("-", "")
    if "reducescatter" in plain:
        return Cause.EXPOSED_REDUCE_SCATTER
    if "allgather" in plain:
        return Cause.EXPOSED_ALL_GATHER
    return Cause.EXPOSED_ALL_REDUCE if "allreduce" in plain else Cause.EXPOSED_COMMUNICATION


def late_ranks(ranks: RankComparison, *, explained: AbstractSet[int]) -> Sequence[Verdict]:
    """The rank that the others wait for, if no other verdict names a rank.

    Stages of a pipeline wait for each other by design, and CPU ranks on one host disturb each other: no verdict there.
    """
    caused = ranks.caused_wait_ms()
    if explained or not ranks.on_device or any(record.stage is not None for record in ranks.records):
        return ()
    means = {rank: float(ms.mean()) for rank, ms in caused.items()}
    worst = max(means, key=lambda rank: (means[rank], -rank))
    others = [ms for rank, ms in caused.items() if rank != worst]
    if not others:
        return ()
    cost = means[worst] - max(float(ms.mean()) for ms in others)
    leads = float(np.mean(caused[worst] > np.max(others, axis=0)))
    if cost < min_cost_ms(ranks) or leads < LATE_STEPS:
        return ()
    evidence = f"it is the last to enter in {round(100 * leads)}% of the steps"
    advice = "Trace it with stacks (with_stack) to see what it does before its collectives"
    return (Verdict((worst,), None, Cause.LATE_RANK, cost, evidence, round(0.5 + 0.4 * leads, 2), advice),)
