"""Detectors of communication that is not hidden, and of ranks that are late for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from muster.tracing.formatting import format_list, format_seconds
from muster.tracing.ranks.rank_comparison import MatchedCollective, RankComparison, clock_shifts
from muster.tracing.verdicts.types import ADVICE, Cause, Verdict
from muster.tracing.work.transfers import match_transfers

EXPOSED_SHARE = 0.25  # of a step, without waiting for late ranks
SLOW_BUS_GB_S = 10.0  # less than one 100 Gbit/s link
SLOW_SHARE = 0.1  # of a step, with less than that
REDUNDANT_SHARE = 0.03  # of a step, in which what is reduced again is transferred
SLOW_LINK_RATIO = 3.0  # to the transfers between other stages
MAX_BLOCKS = 4
NETWORK_ADVICE = "Check with nccl-tests that NCCL uses NVLink and RDMA (NCCL_DEBUG=INFO)"
LARGE_MESSAGE_BYTES = 1 << 20


def exposed_collectives(ranks: RankComparison) -> Iterator[Verdict]:
    """Collectives whose transfer, without waiting for late ranks, takes a large part of the step on all devices."""
    by_cause: dict[Cause, list[MatchedCollective]] = {}
    for collective in ranks.collectives if ranks.on_device else ():
        by_cause.setdefault(_cause(collective.name), []).append(collective)
    for cause, found in by_cause.items():
        exposed_ms = _exposed_ms(ranks, found)
        large = [c.bus_gb_s for c in found if c.bus_gb_s is not None and c.message_bytes >= LARGE_MESSAGE_BYTES]
        bandwidth = float(np.median(large)) if large else np.inf
        if exposed_ms < (SLOW_SHARE if bandwidth < SLOW_BUS_GB_S else EXPOSED_SHARE) * ranks.step_ms:
            continue
        evidence = (
            f"{format_seconds(exposed_ms / 1e3)} a step of {len(found)} traced collectives{_blocks(ranks, found)}"
        )
        if bandwidth < SLOW_BUS_GB_S:
            evidence += f", with a bus bandwidth of {bandwidth:.3g} GB/s"
            yield Verdict((), None, Cause.SLOW_NETWORK, exposed_ms, evidence, 0.8, NETWORK_ADVICE)
        else:
            advice = "Prefetch earlier, use larger local batches, or shard over fewer ranks"
            yield Verdict((), None, cause, exposed_ms, evidence, 0.6, advice)


def redundant_all_reduces(ranks: RankComparison) -> Sequence[Verdict]:
    """Gradients that each of several backward passes of a step reduces: only those of the last one are needed."""
    passes = int(min(record.gradient_reductions.min() for record in ranks.records))
    found = [c for c in ranks.collectives if _cause(c.name) is Cause.EXPOSED_ALL_REDUCE]
    if passes < 2 or not found:
        return ()
    needless = 1 - 1 / passes
    running_ms = needless * sum(c.transfer_ns for c in found) / len(ranks.steps) / 1e6
    if running_ms < REDUNDANT_SHARE * ranks.step_ms:
        return ()
    cause, cost = Cause.REDUNDANT_ALL_REDUCE, needless * _exposed_ms(ranks, found)
    evidence = (
        f"each of {passes} backward passes of a step reduces the gradients: {_seconds(running_ms)} of all-reduces"
    )
    return (Verdict((), None, cause, cost, evidence, 0.9, ADVICE[cause]),)


def slow_links(ranks: RankComparison) -> Iterator[Verdict]:
    """Sends and receives between two stages of a pipeline that take a large part of the step while nothing computes."""
    found = links(ranks) if ranks.on_device else ()
    for link in found:
        slow = link.gb_s is not None and link.gb_s < SLOW_BUS_GB_S
        if link.exposed_ms < (SLOW_SHARE if slow else EXPOSED_SHARE) * ranks.step_ms:
            continue
        others = [other.transfer_ms for other in found if other is not link]
        evidence = f"a transfer between ranks {link.ranks[0]} and {link.ranks[1]} takes {_seconds(link.transfer_ms)}"
        if link.gb_s is not None:
            evidence += f" ({link.gb_s:.3g} GB/s)"
        if others:
            evidence += f", between others {_seconds(float(np.median(others)))}"
        slower = bool(others) and link.transfer_ms >= SLOW_LINK_RATIO * float(np.median(others))
        if slow or slower:
            yield Verdict(link.ranks, None, Cause.SLOW_NETWORK, link.exposed_ms, evidence, 0.8, NETWORK_ADVICE)
        else:
            advice = "Use larger micro-batches, fewer stages, or a schedule that overlaps transfers"
            yield Verdict(link.ranks, None, Cause.EXPOSED_COMMUNICATION, link.exposed_ms, evidence, 0.6, advice)


def _seconds(ms: float) -> str:
    return format_seconds(ms / 1e3)


def _exposed_ms(ranks: RankComparison, found: Sequence[MatchedCollective]) -> float:
    """The exposed time per step, averaged over the ranks."""
    return sum(c.exposed_ns * len(c.ranks) for c in found) / len(ranks.records) / len(ranks.steps) / 1e6


def _blocks(ranks: RankComparison, found: Sequence[MatchedCollective]) -> str:
    """`, most in layers.0 (4.2 ms) and head (1.0 ms)`: the blocks of FSDP with the longest exposed time."""
    by_block: dict[str, list[MatchedCollective]] = {}
    for collective in found:
        by_block.setdefault(collective.block, []).append(collective)
    times = sorted(((_exposed_ms(ranks, of), block) for block, of in by_block.items() if block), reverse=True)
    named = [f"{block} ({format_seconds(ms / 1e3)})" for ms, block in times[:MAX_BLOCKS] if ms > 0]
    return f", most in {format_list(named)}" if named else ""


def _cause(name: str) -> Cause:
    plain = name.lower().replace("_", "").replace("-", "")
    if "reducescatter" in plain:
        return Cause.EXPOSED_REDUCE_SCATTER
    if "allgather" in plain:
        return Cause.EXPOSED_ALL_GATHER
    return Cause.EXPOSED_ALL_REDUCE if "allreduce" in plain else Cause.EXPOSED_COMMUNICATION


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
