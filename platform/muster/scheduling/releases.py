"""What placed gangs take from nodes and charge to queues, and when that becomes free at the latest.

Releases are flat arrays over all running gangs, so that the capacity after a thousand of them is a few array
operations. A gang without a maximum run time comes after all others; ties are ordered by start time (oldest first),
then by a hash of the uid.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from muster.model import Gang, Placement, RolePlacement, RunningGang
from muster.quota import CellAmounts, QueueTree
from muster.scheduling.capacity import NodeUsage, unique_rows
from muster.scheduling.nodes import BoolArray, FloatArray, IntArray, NodeTable, ObjectArray


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedRelease:
    """What a gang takes and charges until it ends. `release_at` is infinite without a maximum run time; `preemptible`:
    it may be evicted sooner, or lose what it retains; `tiebreak` is a hash of its uid (see `tiebreak_of`)."""

    uid: str
    release_at: float
    since: float
    tiebreak: int
    node_usage: NodeUsage
    queue: int  # -1: none is charged
    amounts: CellAmounts
    priority: int = 0
    preemptible: bool = False

    @classmethod
    def of(
        cls, gang: Gang, start_by: float, since: float, node_usage: NodeUsage, queue: int, amounts: CellAmounts
    ) -> ExpectedRelease:
        """The release of a gang that starts at `start_by` at the latest."""
        return cls(gang.uid, latest_release(gang, start_by), since, tiebreak_of(gang.uid), node_usage, queue, amounts)

    @property
    def key(self) -> tuple[float, float, int]:
        return self.release_at, self.since, self.tiebreak


TERMINATION_SLACK_S = 30.0
"""Seconds after its run time and grace period by which a gang's capacity is free."""


def latest_release(gang: Gang, start: float) -> float:
    """The latest release of a gang that starts at `start` at the latest; infinite without a maximum run time."""
    return math.inf if gang.max_runtime_s is None else start + gang.max_runtime_s + gang.grace_s + TERMINATION_SLACK_S


def tiebreak_of(uid: str) -> int:
    """A hash of a uid; two uids collide with a probability of 2**-62."""
    return int.from_bytes(blake2b(uid.encode(), digest_size=8).digest(), "big") >> 2


@dataclass(frozen=True, slots=True, eq=False)
class GangUsage:
    """A running gang: what it takes from nodes, and what it charges to its queue (-1: the queue was deleted).

    `release` is what it takes once terminating gangs have ended: everything while it is admitted, the retained part
    while it is resized or restarted, None when its admission ends.
    """

    running: RunningGang
    queue: int
    node_usage: NodeUsage
    amounts: CellAmounts
    release: ExpectedRelease | None
    elastic: bool

    @property
    def is_admitted(self) -> bool:
        return self.running.state == "admitted"


def gang_usage(table: NodeTable, tree: QueueTree, running: RunningGang) -> GangUsage:
    """What a running gang takes and charges."""
    gang, queue = running.gang, tree.index.get(running.gang.queue, -1)
    highest = tree.priority_caps[queue] if queue >= 0 else None
    if highest is not None and gang.priority > highest:  # edited while it runs: no admission checked it
        gang = replace(gang, priority=highest)
        running = replace(running, gang=gang)
    node_usage, amounts = (
        node_usage_of_placement(table, gang, running.placement),
        quota_of_placement(tree, queue, gang, running.placement),
    )
    later, back = None, running.retained_until
    if running.state == "admitted" or running.retained_placement:
        is_admitted = running.state == "admitted"
        deadline = running.release_deadline if back is None else latest_release(gang, back)
        later = ExpectedRelease(
            uid=gang.uid,
            release_at=math.inf if deadline is None else deadline,
            since=running.admitted_at if back is None else back,
            tiebreak=tiebreak_of(gang.uid),
            node_usage=node_usage if is_admitted else node_usage_of_placement(table, gang, running.retained_placement),
            queue=queue,
            amounts=amounts if is_admitted else quota_of_placement(tree, queue, gang, running.retained_placement),
            priority=gang.priority,
            preemptible=is_admitted or back is not None,  # retained capacity can be preempted, like a nomination
        )
    elastic = any(role.min_replicas < role.replicas for role in gang.roles)
    return GangUsage(running, queue, node_usage, amounts, later, elastic)


def quota_of_placement(tree: QueueTree, queue: int, gang: Gang, placement: Placement) -> CellAmounts:
    """What a placement charges to a queue."""
    if queue < 0:
        return ()
    request_of = {role.name: role.request for role in gang.roles}
    total: dict[int, int] = {}
    for part in placement:
        for cell, amount in tree.cell_amounts(queue, part.flavor, request_of[part.role]):
            total[cell] = total.get(cell, 0) + amount * part.replicas
    return tuple(total.items())


def node_usage_of_placement(table: NodeTable, gang: Gang, placement: Placement) -> NodeUsage:
    """What a placement takes from the nodes that still exist."""
    if len(placement) == 1 and len(placement[0].nodes) == 1:  # fast path: thousands of gangs are on one node
        return _node_usage_on_one_node(table, gang, placement[0])
    request_of = {role.name: table.to_row(role.request) for role in gang.roles}
    pods: dict[tuple[int, str], int] = {}
    for part in placement:
        for node, count in part.nodes:
            row = table.row_of.get(node)
            if row is not None:
                pods[row, part.role] = pods.get((row, part.role), 0) + count
    rows = np.array(sorted({row for row, _ in pods}), dtype=np.int64)
    amounts = np.zeros((len(rows), len(table.columns)), dtype=np.int64)
    index = {int(row): i for i, row in enumerate(rows)}
    for (row, role), count in pods.items():
        amounts[index[row]] += count * request_of[role]
    return NodeUsage(rows, amounts)


def _node_usage_on_one_node(table: NodeTable, gang: Gang, part: RolePlacement) -> NodeUsage:
    ((node, count),) = part.nodes
    row = table.row_of.get(node)
    if row is None:
        return NodeUsage(np.zeros(0, dtype=np.int64), np.zeros((0, len(table.columns)), dtype=np.int64))
    request = next(role.request for role in gang.roles if role.name == part.role)
    return NodeUsage(np.array([row], dtype=np.int64), count * table.to_row(request)[None, :])


@dataclass(slots=True, eq=False)
class ExpectedReleases:
    """Many releases, unordered; `positions` gives the order. Immutable.

    Capacity is in entries (one per gang and node), and so is quota (one per gang and cell).
    """

    uids: ObjectArray
    release_at: FloatArray
    since: FloatArray
    tiebreak: IntArray
    queue: IntArray  # -1: none
    priority: IntArray
    preemptible: BoolArray
    node_gang: IntArray  # [entries] index of the gang
    node_row: IntArray
    node_amounts: IntArray  # [entries, columns]
    charge_gang: IntArray  # [entries] index of the gang
    charge_queue: IntArray
    charge_cell: IntArray
    charge_amount: IntArray
    _positions: IntArray | None = None
    _index_by_tiebreak: dict[int, int] | None = None  # index by tiebreak

    @classmethod
    def of(cls, releases: Iterable[ExpectedRelease], columns: int) -> ExpectedReleases:
        """Releases as arrays; `columns` of the node table."""
        expected = list(releases)
        charges = [
            (i, d.queue, cell, amount) for i, d in enumerate(expected) if d.queue >= 0 for cell, amount in d.amounts
        ]
        charge = np.array(charges, dtype=np.int64).reshape(-1, 4)
        lengths = np.array([len(d.node_usage.rows) for d in expected], dtype=np.int64)
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, columns), dtype=np.int64)
        return cls(
            uids=np.array([d.uid for d in expected], dtype=np.object_),
            release_at=np.array([d.release_at for d in expected], dtype=np.float64),
            since=np.array([d.since for d in expected], dtype=np.float64),
            tiebreak=np.array([d.tiebreak for d in expected], dtype=np.int64),
            queue=np.array([d.queue for d in expected], dtype=np.int64),
            priority=np.array([d.priority for d in expected], dtype=np.int64),
            preemptible=np.array([d.preemptible for d in expected], dtype=np.bool_),
            node_gang=np.repeat(np.arange(len(expected), dtype=np.int64), lengths),
            node_row=np.concatenate([none, *(d.node_usage.rows for d in expected)]),
            node_amounts=np.concatenate([nothing, *(d.node_usage.amounts for d in expected)]),
            charge_gang=charge[:, 0],
            charge_queue=charge[:, 1],
            charge_cell=charge[:, 2],
            charge_amount=charge[:, 3],
        )

    def __len__(self) -> int:
        return len(self.release_at)

    @property
    def positions(self) -> IntArray:
        """The position of each gang in the release order; 0 is first."""
        if self._positions is None:
            self._positions = np.empty(len(self), dtype=np.int64)
            self._positions[np.lexsort((self.tiebreak, self.since, self.release_at))] = np.arange(
                len(self), dtype=np.int64
            )
        return self._positions

    def index_of(self, release: ExpectedRelease) -> int | None:
        """The index of a release that is among these unchanged; None if it is not."""
        if self._index_by_tiebreak is None:  # hot path: called for every victim that is tried
            self._index_by_tiebreak = {tiebreak: i for i, tiebreak in enumerate(self.tiebreak.tolist())}
        index = self._index_by_tiebreak.get(release.tiebreak)
        return index if index is not None and self.release_at[index] == release.release_at else None

    def since_before(self, time: float) -> ExpectedReleases:
        """Those of gangs that started before this time."""
        return self._only(self.since < time)

    def without(self, tiebreaks: Collection[int]) -> ExpectedReleases:
        """All but those with these tiebreaks."""
        return self._only(~np.isin(self.tiebreak, np.fromiter(tiebreaks, dtype=np.int64, count=len(tiebreaks))))

    def _only(self, kept: BoolArray) -> ExpectedReleases:
        if kept.all():
            return self
        number = np.cumsum(kept) - 1
        nodes, charges = kept[self.node_gang], kept[self.charge_gang]
        return ExpectedReleases(
            uids=self.uids[kept],
            release_at=self.release_at[kept],
            since=self.since[kept],
            tiebreak=self.tiebreak[kept],
            queue=self.queue[kept],
            priority=self.priority[kept],
            preemptible=self.preemptible[kept],
            node_gang=number[self.node_gang[nodes]],
            node_row=self.node_row[nodes],
            node_amounts=self.node_amounts[nodes],
            charge_gang=number[self.charge_gang[charges]],
            charge_queue=self.charge_queue[charges],
            charge_cell=self.charge_cell[charges],
            charge_amount=self.charge_amount[charges],
        )

    def plus(self, more: ExpectedReleases) -> ExpectedReleases:
        """The union of both."""
        if not len(more):
            return self
        return ExpectedReleases(
            uids=np.concatenate([self.uids, more.uids]),
            release_at=np.concatenate([self.release_at, more.release_at]),
            since=np.concatenate([self.since, more.since]),
            tiebreak=np.concatenate([self.tiebreak, more.tiebreak]),
            queue=np.concatenate([self.queue, more.queue]),
            priority=np.concatenate([self.priority, more.priority]),
            preemptible=np.concatenate([self.preemptible, more.preemptible]),
            node_gang=np.concatenate([self.node_gang, more.node_gang + len(self)]),
            node_row=np.concatenate([self.node_row, more.node_row]),
            node_amounts=np.concatenate([self.node_amounts, more.node_amounts]),
            charge_gang=np.concatenate([self.charge_gang, more.charge_gang + len(self)]),
            charge_queue=np.concatenate([self.charge_queue, more.charge_queue]),
            charge_cell=np.concatenate([self.charge_cell, more.charge_cell]),
            charge_amount=np.concatenate([self.charge_amount, more.charge_amount]),
        )

    def usage_by_gang(self, rows: BoolArray) -> IntArray:
        """What each gang takes of some rows of the table, together: [gangs, columns]."""
        inside = rows[self.node_row]
        owner, amounts = self.node_gang[inside], self.node_amounts[inside]
        total = np.zeros((len(self), amounts.shape[1]), dtype=np.int64)
        for column in range(amounts.shape[1]):  # exact: see `OrderedReleases.between`
            total[:, column] = np.bincount(owner, weights=amounts[:, column], minlength=len(self))
        return total

    def key_at(self, count: int) -> tuple[float, float, int]:
        """The key of the last of the first `count` releases; for 0 one before all others."""
        if count == 0:
            return -math.inf, math.inf, 0
        last = np.flatnonzero(self.positions == count - 1)[0]
        return float(self.release_at[last]), float(self.since[last]), int(self.tiebreak[last])

    def in_order(self) -> OrderedReleases:
        """What becomes free, in release order."""
        rank = self.positions[self.node_gang]
        order = np.argsort(rank, kind="stable")
        stops = np.searchsorted(rank[order], np.arange(len(self) + 1))
        return OrderedReleases(stops, self.node_row[order], self.node_amounts[order])


@dataclass(frozen=True, slots=True, eq=False)
class OrderedReleases:
    """Entries (gang, node) in release order; those of release `i` are `stops[i]:stops[i + 1]`."""

    stops: IntArray
    row: IntArray
    amounts: IntArray

    def between(self, start: int, stop: int, rows: int) -> NodeUsage:
        """What the releases `start` (from 0) up to before `stop` free; `rows` of the table."""
        entries = slice(int(self.stops[start]), int(self.stops[stop]))
        touched = self.row[entries]
        found = unique_rows(touched, rows)
        index = np.zeros(rows, dtype=np.int64)
        index[found] = np.arange(len(found))
        freed = np.zeros((len(found), self.amounts.shape[1]), dtype=np.int64)
        for column, amounts in enumerate(self.amounts[entries].T):
            # Sums of one node's amounts stay far below 2**53, so adding them up as floats is exact.
            freed[:, column] = np.bincount(index[touched], weights=amounts, minlength=len(found))
        return NodeUsage(found, freed)
