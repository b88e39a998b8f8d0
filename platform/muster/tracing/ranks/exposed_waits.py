"""How long ranks wait for each other in collectives while they compute nothing.

Collectives run at the same time: gloo runs several at once, and a GPU those of several process groups. So the time of a
rank's waits is that of their union, not their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.tracing.ranks.rank_comparison import Matrix, RankComparison
from muster.tracing.read.spans import Int64, Spans, union


@dataclass(frozen=True, slots=True)
class ExposedWaits:
    """Milliseconds by rank (in the order of the records) and common step.

    `waited_ms` is how long a rank waits for later ranks, `awaited_ms` how long the median rank with which it shares
    collectives waits for it.
    """

    waited_ms: Matrix
    awaited_ms: Matrix


def exposed_waits(comparison: RankComparison) -> ExposedWaits:
    """The waits in matched collectives. An exposed part of a wait counts from the entry into the collective."""
    position = {record.rank: i for i, record in enumerate(comparison.records)}
    step_at = {step: i for i, step in enumerate(comparison.steps)}
    rows: list[tuple[int, int, int, int, float]] = []
    peers: list[set[int]] = [set() for _ in position]
    for one in comparison.collectives:
        awaited, step = position[one.awaited_rank], step_at[one.step]
        ranks = [position[rank] for rank in one.ranks]
        peers[awaited].update(ranks)
        rows += [
            (rank, awaited, step, entry, wait)
            for rank, entry, wait in zip(ranks, one.entry_ns, one.exposed_wait_ns, strict=True)
            if wait > 0
        ]
    shape = len(position), len(step_at)
    waited, awaited_ms = np.zeros(shape), np.zeros(shape)
    if rows:
        rank, awaiting, step_of, entry, wait = (np.array(column) for column in zip(*rows, strict=True))
        spans = Spans(entry, entry + np.rint(wait).astype(np.int64))
        waited = _covered_ms(rank * shape[1] + step_of, spans, shape[0] * shape[1]).reshape(shape)
        for i in np.unique(awaiting).tolist():
            of_rank = awaiting == i
            keys = rank[of_rank] * shape[1] + step_of[of_rank]
            caused = _covered_ms(keys, Spans(spans.start[of_rank], spans.end[of_rank]), shape[0] * shape[1])
            awaited_ms[i] = np.median(caused.reshape(shape)[sorted(peers[i] - {i})], axis=0)
    return ExposedWaits(waited, awaited_ms)


def _covered_ms(keys: Int64, spans: Spans, count: int) -> Matrix:
    """For each key below `count`, the milliseconds that at least one of its spans covers."""
    origin = spans.start.min()
    length = int(spans.end.max() - origin) + 1
    shift = keys * length - origin  # the spans of each key have a range of their own
    joined = union(Spans(spans.start + shift, spans.end + shift))
    return np.bincount(joined.start // length, weights=joined.end - joined.start, minlength=count) / 1e6
