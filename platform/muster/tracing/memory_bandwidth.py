"""Bandwidth of copies and memsets on a device over time.

HolisticTraceAnalysis (HTA) 0.5.0: `get_memory_bw_time_series` and `get_memory_bw_summary`. HTA's summary weights each
change of the bandwidth alike, so that many short copies outweigh a long one; here the weight is time, unless
`by_change` is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import EventKind, Events, Trace
from muster.tracing.read.spans import Int64, Spans, groups, total_ns
from muster.tracing.work.hta_breakdown import NS_PER_US

Float64 = NDArray[np.float64]
QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class BandwidthChanges:
    """The bandwidth of all running copies of a kind (`Memcpy HtoD`, `Memset`) from each change on: nanoseconds since
    the trace's origin, in order, and GB/s. `thread` is that of the first copy in the trace's threads."""

    kind: str
    thread: int
    time: Int64
    gbps: Float64


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The copies of a kind: how many, their bytes (of those that have them), the time in which any ran, and mean,
    standard deviation and quartiles of the bandwidth while any ran, in GB/s."""

    kind: str
    copies: int
    bytes: int
    busy_ns: int
    mean_gbps: float
    stddev_gbps: float | None
    min_gbps: float
    quartiles_gbps: tuple[float, float, float]
    max_gbps: float


@dataclass(frozen=True, slots=True)
class _Copies:
    kind: str
    events: Events
    size: Int64
    gbps: Float64


def bandwidth_changes(trace: Trace, work: Events, *, by_change: bool = False) -> tuple[BandwidthChanges, ...]:
    """One for each kind of copy in `work`, by kind. The trace was read with `Detail.COPIES`.

    The bandwidth of a copy is the recorded one, else its bytes by its duration. Where several edges share a time, only
    the state after the last of them counts; with `by_change`, each, as in HTA, which also makes empty copies last 1 us.
    """
    found = []
    for copies in _copies(trace, work):
        start, end = copies.events.start, copies.events.end
        if by_change:
            end = np.where(end == start, start + NS_PER_US, end)
        time = np.concatenate((start, end))
        order = np.argsort(time, kind="stable")
        time = time[order]
        gbps = np.cumsum(np.concatenate((copies.gbps, -copies.gbps))[order])
        if not by_change:
            running = np.cumsum(np.repeat((1, -1), len(start))[order])
            gbps = np.where(running > 0, gbps, 0.0)  # without what rounding leaves of sums
            last = np.append(time[1:] != time[:-1], True)
            time, gbps = time[last], gbps[last]
        found.append(BandwidthChanges(copies.kind, int(copies.events.thread[0]), time, gbps))
    return tuple(found)


def bandwidth_table(trace: Trace, work: Events, *, by_change: bool = False) -> tuple[Bandwidth, ...]:
    """One row for each kind of copy, by kind; `by_change` as HTA's summary. The trace was read with `Detail.COPIES`."""
    rows = []
    for copies, changes in zip(_copies(trace, work), bandwidth_changes(trace, work, by_change=by_change), strict=True):
        busy = changes.gbps > 0
        gbps = changes.gbps[busy]
        weight = np.ones(len(gbps)) if by_change else np.diff(changes.time, append=changes.time[-1])[busy]
        if not weight.sum():
            continue  # no duration, or no bandwidth and no bytes
        mean = float(np.average(gbps, weights=weight))
        square = float(np.average((gbps - mean) ** 2, weights=weight))
        if by_change:  # of a sample
            square = square * len(gbps) / (len(gbps) - 1) if len(gbps) > 1 else np.nan
        low, middle, high = np.quantile(gbps, QUARTILES).tolist() if by_change else _weighted(gbps, weight)
        rows.append(
            Bandwidth(
                kind=copies.kind,
                copies=len(copies.events),
                bytes=int(copies.size[copies.size > 0].sum()),
                busy_ns=total_ns(Spans(copies.events.start, copies.events.end)),
                mean_gbps=mean,
                stddev_gbps=None if np.isnan(square) else square**0.5,
                min_gbps=float(gbps.min()),
                quartiles_gbps=(low, middle, high),
                max_gbps=float(gbps.max()),
            )
        )
    return tuple(rows)


def _weighted(values: Float64, weight: NDArray[np.float64] | Int64) -> list[float]:
    """The quartiles of values with weights: the least value with that share of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    return [float(values[order][min(int(np.searchsorted(share, q)), len(values) - 1)]) for q in QUARTILES]


def _copies(trace: Trace, work: Events) -> list[_Copies]:
    details = trace.details
    if details is None or details.copied_bytes is None or details.bandwidth is None:
        raise ValueError("read_trace(path, details={Detail.COPIES}) reads the bandwidth of copies")
    rows = np.flatnonzero(np.isin(trace.events.kind, (EventKind.MEMCPY, EventKind.MEMSET)))
    events = trace.events[rows]
    wanted = np.isin(events.correlation, work.correlation)
    rows, events = rows[wanted], events[wanted]
    size, gbps = details.copied_bytes[rows], details.bandwidth[rows]
    computed = np.where((size > 0) & (events.duration > 0), size / np.maximum(events.duration, 1), 0.0)
    gbps = np.where(np.isfinite(gbps), gbps, computed)
    kinds = sorted({copy_kind(name) for name in trace.names})
    code = np.array([kinds.index(copy_kind(name)) for name in trace.names], dtype=np.int64)[events.name]
    return [_Copies(kinds[code[same[0]]], events[same], size[same], gbps[same]) for same in groups(code)]


def copy_kind(name: str) -> str:
    """`Memcpy HtoD` of `Memcpy HtoD (Pageable -> Device)`, `Memset` of `Memset (Device)`."""
    return name.split(" (")[0]
