"""How long the transfers between two ranks take: from when both have called one to its end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from muster.tracing.rank_comparison import RankComparison, clock_shifts
from muster.tracing.transfers import match_transfers

LARGE_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Link:
    """The transfers between two ranks, in milliseconds.

    `exposed_ms` is the time of them per step in which nothing computed, averaged over the two ranks; `transfer_ms` the
    median of one. `gb_s` is the median over messages from 1 MiB of their size divided by their time; None without any.
    """

    ranks: tuple[int, int]
    exposed_ms: float
    transfer_ms: float
    gb_s: float | None


def links(comparison: RankComparison) -> tuple[Link, ...]:
    """The pairs of ranks with matched transfers, in order. An event with several peers counts for the last one."""
    records, shift = comparison.records, clock_shifts(comparison.records, comparison.clocks)
    tables = [record.transfers for record in records]
    sizes: dict[tuple[int, int, int], int] = {}
    for i, table in enumerate(tables):
        for event, peer, size in zip(
            *(c.tolist() for c in (table.event, table.peer, table.message_bytes)), strict=True
        ):
            sizes[i, event, peer] = max(size, sizes.get((i, event, peer), -1))
    exposed: defaultdict[tuple[int, int], float] = defaultdict(float)
    times: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    matched = match_transfers([record.rank for record in records], tables, comparison.steps)
    for (i, event), peers in matched.items():
        table, own = tables[i], records[i].rank
        called, other = max((float(tables[p.record].start[p.event] + shift[p.record]), p.record) for p in peers)
        transfer = float(table.end[event] + shift[i]) - max(called, float(table.wait_start[event] + shift[i]))
        if transfer > 0:
            peer = records[other].rank
            pair = min(own, peer), max(own, peer)
            exposed[pair] += min(transfer, float(table.exposed_ns[event]))
            times[pair].append((transfer, sizes.get((i, event, peer), -1)))
    found = []
    for pair in sorted(times):
        speeds = [size / ns for ns, size in times[pair] if size >= LARGE_MESSAGE_BYTES]
        found.append(
            Link(
                ranks=pair,
                exposed_ms=exposed[pair] / 2 / len(comparison.steps) / 1e6,
                transfer_ms=float(np.median([ns for ns, _ in times[pair]])) / 1e6,
                gb_s=float(np.median(speeds)) if speeds else None,
            )
        )
    return tuple(found)
