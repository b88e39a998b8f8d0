"""The critical path of a step across ranks: the chain of work and waits that determined how long the step took.

It is followed back from the end of the slowest rank. Within a rank `local_path` says what was waited for. A collective
cannot end before its last rank has entered: its transfer counts, and the path goes on at that rank. So it does at the
other rank of a send or a receive if that one came later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from muster.tracing.account.local_path import NONE
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.ranks.rank_comparison import RankComparison, clock_shifts, match_collectives
from muster.tracing.work.transfers import Peer, match_transfers

MAX_PARTS = 15


@dataclass(frozen=True, slots=True)
class PathPart:
    """What takes time on the critical path on one rank: a `kind` and a name, in milliseconds per step.

    Kinds: `kernel`, `copy`, `operator` (on the CPU), `collective` (the transfer, after the last rank has entered),
    `transfer` (a send or a receive, after both ranks have called it), `communication` (what could not be matched, with
    waiting), `host` (in the annotation `name`, empty outside of all), `launch`, `gap`, and `other`: smaller parts
    together (`rank` None).
    """

    kind: str
    name: str
    rank: int | None
    ms: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The mean over the steps. The parts, largest first, sum to `step_ms`, the time from the beginning of a step on the
    rank where the path begins to its end on the slowest rank."""

    steps: int
    step_ms: float
    parts: tuple[PathPart, ...]


def critical_path(ranks: RankComparison) -> CriticalPath | None:
    """The path over the steps that all ranks have; None if the records have no local paths."""
    if any(record.paths is None for record in ranks.records):
        return None
    walk = _Walk(ranks)
    for step in ranks.steps:
        walk.follow(step)
    ns = walk.ns
    ordered = sorted(ns, key=lambda key: (-ns[key], key))
    scale = 1e6 * len(ranks.steps)
    parts = [PathPart(kind, name, rank, ns[kind, name, rank] / scale) for kind, name, rank in ordered[:MAX_PARTS]]
    if others := sum(ns[key] for key in ordered[MAX_PARTS:]):
        parts.append(PathPart("other", "", None, others / scale))
    return CriticalPath(len(ranks.steps), sum(ns.values()) / scale, tuple(parts))


_PHRASES = {
    "kernel": "kernel {}",
    "copy": "{}",
    "operator": "operator {}",
    "collective": "transfer of {}",
    "transfer": "{} (transfer)",
    "communication": "{}, with waiting",
    "host": "host in {}",
    "launch": "kernel launches, {}",
    "gap": "gaps {}",
    "other": "smaller parts",
}


def path_lines(path: CriticalPath) -> list[str]:
    """A line for each part: `51.1 ms (25.4%): host in 'data', rank 1`."""
    lines = []
    for part in path.parts:
        name = (repr(part.name) if part.name else "no annotation") if part.kind == "host" else part.name
        where = "" if part.rank is None else f", rank {part.rank}"
        share = format_percent(part.ms / path.step_ms) if path.step_ms > 0 else "0%"
        lines.append(f"{format_seconds(part.ms / 1e3)} ({share}): {_PHRASES[part.kind].format(name)}{where}")
    return lines


class _Walk:
    """Sums nanoseconds by kind, name and rank over the paths that it follows."""

    def __init__(self, ranks: RankComparison) -> None:
        self._records: Sequence[RankRecord] = ranks.records
        self._shift = clock_shifts(ranks.records, ranks.clocks)
        self._members = {
            (rank, row): members
            for members in match_collectives(ranks.records, set(ranks.steps))
            for rank, row in members.items()
        }
        self._nodes = [
            {}
            if record.paths is None
            else {row: i for i, row in enumerate(record.paths.collective.tolist()) if row >= 0}
            for record in self._records
        ]
        self._peers = match_transfers(
            [record.rank for record in ranks.records], [record.transfers for record in ranks.records], ranks.steps
        )
        self._posted = [
            {}
            if record.paths is None
            else {event: i for i, event in enumerate(record.paths.posted.tolist()) if event >= 0}
            for record in self._records
        ]
        self.ns: defaultdict[tuple[str, str, int], float] = defaultdict(float)

    def follow(self, step: int) -> None:
        """Add the path of one step."""
        places = [record.steps.tolist().index(step) for record in self._records]
        ends = [
            record.windows.end[at] + self._shift[i]
            for i, (record, at) in enumerate(zip(self._records, places, strict=True))
        ]
        rank = max(range(len(ends)), key=lambda i: (ends[i], -i))
        paths = self._records[rank].paths
        node = NONE if paths is None else int(paths.end_of_step[places[rank]])
        crossed: set[tuple[int, int]] = set()
        while node != NONE:
            record = self._records[rank]
            assert record.paths is not None
            for (kind, name), ns in record.paths.parts(node):
                self.ns[kind, name, record.rank] += ns
            node = int(record.paths.parent[node])
            if node != NONE and (row := int(record.paths.collective[node])) != NONE:
                rank, node = self._cross(rank, node, row, crossed)
                crossed.add((rank, node))
            elif node != NONE and (event := int(record.paths.transfer[node])) != NONE:
                rank, node = self._cross_transfer(rank, node, event, crossed)
                crossed.add((rank, node))

    def _cross(self, rank: int, node: int, row: int, crossed: set[tuple[int, int]]) -> tuple[int, int]:
        """Add the transfer of a collective; the rank that entered last, and the node there.

        The path stays on its rank where it has been there before: ranks that enter collectives of two groups in
        opposite order each seem to wait for the other.
        """
        table = self._records[rank].collectives
        name, number = table.labels[table.name[row]], self._records[rank].rank
        members = {r: at for r, at in self._members.get((rank, row), {}).items() if at in self._nodes[r]}
        if len(members) < 2 or rank not in members:
            self.ns["communication", name, number] += int(table.end[row] - table.start[row])
            return rank, node
        entry = {r: float(self._records[r].collectives.start[at] + self._shift[r]) for r, at in members.items()}
        last = max(entry, key=lambda r: (entry[r], -r))
        if (last, self._nodes[last][members[last]]) in crossed:
            self.ns["communication", name, number] += int(table.end[row] - table.start[row])
            return rank, node
        self.ns["collective", name, number] += max(float(table.end[row] + self._shift[rank]) - entry[last], 0.0)
        return last, self._nodes[last][members[last]]

    def _cross_transfer(self, rank: int, node: int, event: int, crossed: set[tuple[int, int]]) -> tuple[int, int]:
        """Add the time since both ranks have called the transfers of an event; where the path goes on: at the last
        other rank that called while this one waited, else here."""
        table, number = self._records[rank].transfers, self._records[rank].rank
        start, end = (float(column[event] + self._shift[rank]) for column in (table.wait_start, table.end))
        peers = self._peers.get((rank, event), ())
        called = [
            (float(self._records[peer.record].transfers.start[peer.event] + self._shift[peer.record]), peer.record, at)
            for peer in peers
            if (at := self._posted[peer.record].get(peer.event)) is not None and (peer.record, at) not in crossed
        ]
        late = max((one for one in called if start < one[0] <= end), default=None)
        self.ns["transfer" if called else "communication", self._name(peers), number] += end - (late or (start,))[0]
        return (rank, node) if late is None else late[1:]

    @staticmethod
    def _name(peers: Sequence[Peer]) -> str:
        """What this rank does: send, receive, or both at once."""
        directions = {peer.sends for peer in peers}
        return "send/receive" if len(directions) != 1 else "receive" if True in directions else "send"
