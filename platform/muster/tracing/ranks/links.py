"""What ranks send to each other, by pairs of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.rank_comparison import RankComparison, clock_shifts
from muster.tracing.work.transfers import match_transfers


@dataclass(frozen=True, slots=True)
class Link:
    """The transfers between two ranks: the time in each step in which nothing computed, averaged over the two, and of
    each transfer its milliseconds and its bytes, -1 if unknown."""

    exposed_ms: Float64
    transfers: list[tuple[float, int]]


def links(ranks: RankComparison) -> dict[tuple[int, int], Link]:
    """The pairs of ranks with matched transfers. An event with several peers counts for the last one to call."""
    records, shift = ranks.records, clock_shifts(ranks.records, ranks.clocks)
    tables = [record.transfers for record in records]
    rows: dict[tuple[int, int, int], tuple[int, int]] = {}
    for i, table in enumerate(tables):
        columns = table.event.tolist(), table.peer.tolist(), table.step.tolist(), table.message_bytes.tolist()
        for event, peer, step, size in zip(*columns, strict=True):
            rows[i, event, peer] = step, max(size, rows.get((i, event, peer), (step, -1))[1])
    found: dict[tuple[int, int], Link] = {}
    for (i, event), peers in match_transfers([record.rank for record in records], tables, ranks.steps).items():
        table = tables[i]
        called, other = max((float(tables[p.record].start[p.event] + shift[p.record]), p.record) for p in peers)
        ns = float(table.end[event] + shift[i]) - max(called, float(table.wait_start[event] + shift[i]))
        if ns > 0:
            peer = records[other].rank
            step, size = rows[i, event, peer]
            pair = min(records[i].rank, peer), max(records[i].rank, peer)
            link = found.setdefault(pair, Link(np.zeros(len(ranks.steps)), []))
            link.exposed_ms[ranks.steps.index(step)] += min(ns, float(table.exposed_ns[event])) / 2 / 1e6
            link.transfers.append((ns / 1e6, size))
    return dict(sorted(found.items()))
