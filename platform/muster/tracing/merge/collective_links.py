"""Which events of several ranks are one collective, and how far the ranks' clocks are apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.errors import InvalidTrace
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.ranks.rank_comparison import RankComparison, compare_ranks, different_runs, match_collectives
from muster.tracing.work.transfers import match_transfers

_CATEGORY = "collective"
_FIRST_ID = 1 << 52  # above the ids of all ranks


@dataclass(frozen=True, slots=True)
class RankClock:
    """How far a rank's clock is ahead of that of the lowest rank, with the largest plausible error, in nanoseconds;
    None if it is unknown."""

    rank: int
    offset_ns: float | None
    error_ns: float | None


@dataclass(frozen=True, slots=True)
class Arrow:
    """The arrow at one rank of a collective or transfer. `phase`: `s` for the first rank that entered it, `f` for the
    last one, `t` for the others: the arrow goes from rank to rank in the order in which they entered."""

    number: int
    name: str
    phase: str

    def event(self, process: int, thread: int, ts: float) -> dict[str, Any]:
        """The flow event of the Trace Event Format, at the start of the collective on its thread."""
        found = {"ph": self.phase, "cat": _CATEGORY, "name": self.name, "id": _FIRST_ID + self.number}
        found |= {"pid": process, "tid": thread, "ts": ts}
        return found | {"bp": "e"} if self.phase == "f" else found


@dataclass(frozen=True, slots=True)
class RankArrows:
    """The links of a rank's collectives and transfers by their start and end, in nanoseconds since the origin."""

    origin_us: float
    by_times: dict[tuple[int, int], list[Arrow]] = field(default_factory=dict)

    def take(self, ts: float, dur: float) -> list[Arrow]:
        """The links of an event with this start and duration in microseconds; each is given once."""
        start = round((ts - self.origin_us) * 1000)
        return self.by_times.pop((start, round((ts - self.origin_us + dur) * 1000)), [])


@dataclass(frozen=True, slots=True)
class _Member:
    """The part of one rank in a collective or transfer: the position of its record, its start and end, its entry on
    the common clock in nanoseconds."""

    record: int
    times: tuple[int, int]
    entered_ns: float


def link_collectives(records: Sequence[RankRecord]) -> tuple[list[RankClock], dict[int, RankArrows]]:
    """The clocks of the ranks that can be compared with the lowest one, and by rank the links of collectives, sends and
    receives. Without a step that all have, there are neither.

    Raises InvalidTrace if the ranks are of different runs.
    """
    comparison = compare_ranks(records) if len(records) > 1 else None
    if comparison is None:
        return [RankClock(record.rank, 0.0, None) for record in records[:1]], {}
    if reason := different_runs(comparison):
        raise InvalidTrace(f"the traces are of different runs: {reason}")
    first, *others = comparison.clocks
    clocks = [RankClock(first.rank, 0.0, 0.0)]
    clocks += [RankClock(one.rank, one.offset_ns, one.error_ns) for one in others if one.error_ns is not None]
    offsets = {clock.rank: clock.offset_ns or 0.0 for clock in clocks}
    links = {record.rank: RankArrows(record.origin_us) for record in comparison.records}
    for number, (name, members) in enumerate(_matched(comparison, offsets)):
        ordered = sorted(members, key=lambda member: (member.entered_ns, member.record))
        for order, member in enumerate(ordered):
            phase = "s" if order == 0 else "f" if order == len(ordered) - 1 else "t"
            of_rank = links[comparison.records[member.record].rank].by_times
            of_rank.setdefault(member.times, []).append(Arrow(number, name, phase))
    return clocks, links


def _matched(ranks: RankComparison, offsets: Mapping[int, float]) -> Iterator[tuple[str, list[_Member]]]:
    """The collectives, sends and receives of at least two ranks whose clocks are known."""
    records, steps = ranks.records, set(ranks.steps)

    def member(place: int, start: int, end: int) -> _Member:
        record = records[place]
        return _Member(place, (start, end), record.origin_us * 1000 + start - offsets[record.rank])

    for rows in match_collectives(records, steps):
        tables = {place: records[place].collectives for place in rows if records[place].rank in offsets}
        if len(tables) > 1:
            table, row = next((table, rows[place]) for place, table in tables.items())
            name = f"{table.labels[table.name[row]]} of step {table.step[row]}"
            yield (
                name,
                [
                    member(place, int(one.start[rows[place]]), int(one.end[rows[place]]))
                    for place, one in tables.items()
                ],
            )
    transfers = [record.transfers for record in records]
    for (place, event), peers in match_transfers([record.rank for record in records], transfers, steps).items():
        for peer in peers:
            if peer.sends and {records[place].rank, records[peer.record].rank} <= set(offsets):
                both = (peer.record, peer.event), (place, event)
                name = f"rank {records[peer.record].rank} to rank {records[place].rank}"
                yield (
                    name,
                    [member(one, int(transfers[one].start[at]), int(transfers[one].end[at])) for one, at in both],
                )
