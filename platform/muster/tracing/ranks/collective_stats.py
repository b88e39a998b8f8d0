"""How long ranks wait for each other in collectives, and how fast the collectives transfer their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.ranks.exposed_waits import exposed_waits
from muster.tracing.ranks.rank_comparison import MatchedCollective, RankComparison

MAX_KINDS = 24


@dataclass(frozen=True, slots=True)
class RankWait:
    """Milliseconds per step, averaged over the steps: how long a rank waits for later ranks in collectives while it
    computes nothing, and how long the median other rank waits for this one."""

    rank: int
    waits_ms: float
    awaited_ms: float


@dataclass(frozen=True, slots=True)
class CollectiveStats:
    """The collectives of one name, message size and number of ranks.

    `calls` is per step and process group, averaged; `transfer_ms` is the median time from the last entry to the end;
    `bus_gb_s` the median bus bandwidth in GB/s, `low_gb_s` and `high_gb_s` its 10th and 90th percentile.
    """

    name: str
    ranks: int
    message_bytes: int
    calls: float
    transfer_ms: float
    bus_gb_s: float
    low_gb_s: float
    high_gb_s: float


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """All collectives of one name on all ranks in the common steps, in nanoseconds: waiting for the last rank to enter,
    and from then on the transfer. `calls` counts each rank's."""

    name: str
    calls: int
    transfer_ns: int
    waiting_ns: int


def collective_times(comparison: RankComparison) -> tuple[CollectiveTime, ...]:
    """By name, the longest first."""
    sums: dict[str, list[float]] = {}
    for one in comparison.collectives:
        of_name = sums.setdefault(one.name, [0, 0.0, 0.0])
        for i, value in enumerate((len(one.ranks), one.lasted_ns - one.waited_ns, one.waited_ns)):
            of_name[i] += value
    found = [CollectiveTime(name, int(calls), int(move), int(wait)) for name, (calls, move, wait) in sums.items()]
    return tuple(sorted(found, key=lambda one: (-one.transfer_ns - one.waiting_ns, one.name))[:MAX_KINDS])


def rank_waits(comparison: RankComparison) -> tuple[RankWait, ...]:
    """One per rank, in order; empty if no rank waits."""
    waits = exposed_waits(comparison)
    if not waits.waited_ms.any():
        return ()
    means = zip(waits.waited_ms.mean(axis=1).tolist(), waits.awaited_ms.mean(axis=1).tolist(), strict=True)
    return tuple(RankWait(record.rank, *ms) for record, ms in zip(comparison.records, means, strict=True))


def collective_stats(comparison: RankComparison) -> tuple[CollectiveStats, ...]:
    """Those with a known bandwidth; the 24 kinds that take the longest, in that order."""
    kinds: dict[tuple[str, int, int], list[MatchedCollective]] = {}
    for collective in comparison.collectives:
        if collective.bus_gb_s is not None:
            kinds.setdefault((collective.name, collective.message_bytes, len(collective.ranks)), []).append(collective)
    longest = sorted(kinds.items(), key=lambda kind: (-sum(c.transfer_ns for c in kind[1]), kind[0]))[:MAX_KINDS]
    return tuple(_stats(of_kind, len(comparison.steps)) for _, of_kind in longest)


def _stats(of_kind: Sequence[MatchedCollective], steps: int) -> CollectiveStats:
    low, middle, high = np.quantile([c.bus_gb_s for c in of_kind if c.bus_gb_s is not None], (0.1, 0.5, 0.9)).tolist()
    first = of_kind[0]
    groups = len({c.ranks for c in of_kind})
    return CollectiveStats(
        name=first.name,
        ranks=len(first.ranks),
        message_bytes=first.message_bytes,
        calls=len(of_kind) / steps / groups,
        transfer_ms=float(np.median([c.transfer_ns for c in of_kind])) / 1e6,
        bus_gb_s=middle,
        low_gb_s=low,
        high_gb_s=high,
    )
