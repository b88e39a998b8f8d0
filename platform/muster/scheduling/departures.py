"""Who leaves when, at the latest, and what becomes free then: the future, as far as running gangs declare it.

Kept as flat arrays over all running gangs, so that "the room once the first thousand have left" is a few array
operations. A gang without a bound leaves after all that have one; among equals the one that has been there longest
leaves first, then a number drawn from its uid decides, so that the order depends on nothing but the gangs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from muster.model import Gang
from muster.quota import Amounts
from muster.scheduling.nodes import BoolArray, FloatArray, IntArray, ObjectArray
from muster.scheduling.room import Load, distinct


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """What a gang takes and charges until it leaves. `by` is infinite when it declares no bound; `settled`: it may be
    asked to leave sooner, or to give up what it keeps; `tie` belongs to its uid (see `tie_of`)."""

    uid: str
    by: float
    since: float
    tie: int
    load: Load
    queue: int  # -1: none is charged
    amounts: Amounts
    priority: int = 0
    settled: bool = False

    @property
    def key(self) -> tuple[float, float, int]:
        """The order of leaving."""
        return self.by, self.since, self.tie


CLEANUP_S = 30.0
"""Beyond its runtime and grace, a gang's room is free at the latest after so long."""


def gone_by(gang: Gang, start: float) -> float:
    """When a gang is gone at the latest that starts at `start` at the latest; infinite when it does not say."""
    return math.inf if gang.max_runtime_s is None else start + gang.max_runtime_s + gang.grace_s + CLEANUP_S


def tie_of(uid: str) -> int:
    """A number that belongs to a uid; two uids share one with a chance of one in 2**62."""
    return int.from_bytes(blake2b(uid.encode(), digest_size=8).digest(), "big") >> 2


@dataclass(slots=True, eq=False)
class Departures:
    """Many leavings, in no particular order; `rank` tells the order. Never changed.

    Room is given in entries (one per gang and node), charges likewise (one per gang and cell).
    """

    uids: ObjectArray
    by: FloatArray
    since: FloatArray
    tie: IntArray
    queue: IntArray  # -1: none
    priority: IntArray
    settled: BoolArray
    node_owner: IntArray  # [entries] index of the gang
    node_row: IntArray
    node_amounts: IntArray  # [entries, columns]
    charge_owner: IntArray  # [entries] index of the gang
    charge_queue: IntArray
    charge_cell: IntArray
    charge_amount: IntArray
    _rank: IntArray | None = None
    _place: dict[int, int] | None = None  # index by tie

    @classmethod
    def of(cls, departures: Iterable[Departure], columns: int) -> Departures:
        """Lay leavings out in arrays; `columns` of the node table."""
        gone = list(departures)
        charges = [(i, d.queue, cell, amount) for i, d in enumerate(gone) if d.queue >= 0 for cell, amount in d.amounts]
        charge = np.array(charges, dtype=np.int64).reshape(-1, 4)
        lengths = np.array([len(d.load.rows) for d in gone], dtype=np.int64)
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, columns), dtype=np.int64)
        return cls(
            uids=np.array([d.uid for d in gone], dtype=np.object_),
            by=np.array([d.by for d in gone], dtype=np.float64),
            since=np.array([d.since for d in gone], dtype=np.float64),
            tie=np.array([d.tie for d in gone], dtype=np.int64),
            queue=np.array([d.queue for d in gone], dtype=np.int64),
            priority=np.array([d.priority for d in gone], dtype=np.int64),
            settled=np.array([d.settled for d in gone], dtype=np.bool_),
            node_owner=np.repeat(np.arange(len(gone), dtype=np.int64), lengths),
            node_row=np.concatenate([none, *(d.load.rows for d in gone)]),
            node_amounts=np.concatenate([nothing, *(d.load.amounts for d in gone)]),
            charge_owner=charge[:, 0],
            charge_queue=charge[:, 1],
            charge_cell=charge[:, 2],
            charge_amount=charge[:, 3],
        )

    def __len__(self) -> int:
        return len(self.by)

    @property
    def rank(self) -> IntArray:
        """The place of each gang in the order of leaving; 0 leaves first."""
        if self._rank is None:
            self._rank = np.empty(len(self), dtype=np.int64)
            self._rank[np.lexsort((self.tie, self.since, self.by))] = np.arange(len(self), dtype=np.int64)
        return self._rank

    def place_of(self, gang: Departure) -> int | None:
        """The index of a gang that is among these as it is; None when it is not."""
        if self._place is None:  # asked for every victim that is tried: no search each time
            self._place = {tie: i for i, tie in enumerate(self.tie.tolist())}
        place = self._place.get(gang.tie)
        return place if place is not None and self.by[place] == gang.by else None

    def without(self, ties: Collection[int]) -> Departures:
        """All but some, told by their ties."""
        stays = ~np.isin(self.tie, np.fromiter(ties, dtype=np.int64, count=len(ties)))
        if stays.all():
            return self
        number = np.cumsum(stays) - 1
        nodes, charges = stays[self.node_owner], stays[self.charge_owner]
        return Departures(
            uids=self.uids[stays],
            by=self.by[stays],
            since=self.since[stays],
            tie=self.tie[stays],
            queue=self.queue[stays],
            priority=self.priority[stays],
            settled=self.settled[stays],
            node_owner=number[self.node_owner[nodes]],
            node_row=self.node_row[nodes],
            node_amounts=self.node_amounts[nodes],
            charge_owner=number[self.charge_owner[charges]],
            charge_queue=self.charge_queue[charges],
            charge_cell=self.charge_cell[charges],
            charge_amount=self.charge_amount[charges],
        )

    def plus(self, more: Departures) -> Departures:
        """All of both."""
        if not len(more):
            return self
        return Departures(
            uids=np.concatenate([self.uids, more.uids]),
            by=np.concatenate([self.by, more.by]),
            since=np.concatenate([self.since, more.since]),
            tie=np.concatenate([self.tie, more.tie]),
            queue=np.concatenate([self.queue, more.queue]),
            priority=np.concatenate([self.priority, more.priority]),
            settled=np.concatenate([self.settled, more.settled]),
            node_owner=np.concatenate([self.node_owner, more.node_owner + len(self)]),
            node_row=np.concatenate([self.node_row, more.node_row]),
            node_amounts=np.concatenate([self.node_amounts, more.node_amounts]),
            charge_owner=np.concatenate([self.charge_owner, more.charge_owner + len(self)]),
            charge_queue=np.concatenate([self.charge_queue, more.charge_queue]),
            charge_cell=np.concatenate([self.charge_cell, more.charge_cell]),
            charge_amount=np.concatenate([self.charge_amount, more.charge_amount]),
        )

    def by_gang(self, rows: BoolArray) -> IntArray:
        """What each gang takes of some rows of the table, together: [gangs, columns]."""
        inside = rows[self.node_row]
        owner, amounts = self.node_owner[inside], self.node_amounts[inside]
        total = np.zeros((len(self), amounts.shape[1]), dtype=np.int64)
        for column in range(amounts.shape[1]):  # exact: see `Releases.between`
            total[:, column] = np.bincount(owner, weights=amounts[:, column], minlength=len(self))
        return total

    def key_of(self, count: int) -> tuple[float, float, int]:
        """The key of the last of the first `count` to leave; before everybody's for none."""
        if count == 0:
            return -math.inf, -math.inf, 0
        last = np.flatnonzero(self.rank == count - 1)[0]
        return float(self.by[last]), float(self.since[last]), int(self.tie[last])

    def in_turn(self) -> Releases:
        """What comes free, in the order of leaving."""
        rank = self.rank[self.node_owner]
        order = np.argsort(rank, kind="stable")
        stops = np.searchsorted(rank[order], np.arange(len(self) + 1))
        return Releases(stops, self.node_row[order], self.node_amounts[order])


@dataclass(frozen=True, slots=True, eq=False)
class Releases:
    """Entries (gang, node) in the order of leaving; those of number `i` to leave are `stops[i]:stops[i + 1]`."""

    stops: IntArray
    row: IntArray
    amounts: IntArray

    def between(self, start: int, stop: int, rows: int) -> Load:
        """What those give back who are number `start` (from 0) up to before `stop` to leave; `rows` of the table."""
        entries = slice(int(self.stops[start]), int(self.stops[stop]))
        touched = self.row[entries]
        found = distinct(touched, rows)
        place = np.zeros(rows, dtype=np.int64)
        place[found] = np.arange(len(found))
        freed = np.zeros((len(found), self.amounts.shape[1]), dtype=np.int64)
        for column, amounts in enumerate(self.amounts[entries].T):
            # Sums of one node's amounts stay far below 2**53, so adding them up as floats is exact.
            freed[:, column] = np.bincount(place[touched], weights=amounts, minlength=len(found))
        return Load(found, freed)
