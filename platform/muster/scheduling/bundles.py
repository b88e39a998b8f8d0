"""Victims put together who make room for a pod only together.

Asked one by one, cheapest first, victims may be spread so thinly over the nodes that none gets empty before a borrower
is back at its guarantee, and nobody may be asked any more. Put together by node, those come first who make room for one
more pod at the least cost: the rest of their order is as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from muster.scheduling.nodes import BoolArray, IntArray
from muster.scheduling.room import Load, PodKind, Room, fitting
from muster.scheduling.victims import Victim

Bundle: TypeAlias = tuple[Victim, ...]
_Cost: TypeAlias = tuple[int, float, int]  # highest priority, lost work, how many


def bundles(victims: Sequence[Victim], region: BoolArray, room: Room, pod: PodKind) -> list[Bundle]:
    """Those who on some node of the region make room for one more such pod, in the order to ask; at the end everybody
    who is in no bundle, alone. `victims` are in the order to ask; who is on several nodes may be in several bundles."""
    owners, rows, freed = _freed(victims)
    span, usable = room.table.flavors[pod.flavor], np.zeros(len(region), dtype=np.bool_)
    usable[span.start : span.stop] = room.usable(pod)
    helps = (region & usable)[rows]
    owners, rows, freed = owners[helps], rows[helps], freed[helps]
    by_node = np.argsort(rows, kind="stable")  # and on each node in the order to ask
    owners, rows, freed = owners[by_node], rows[by_node], freed[by_node]
    found = _cut(owners, rows, _gains(rows, freed, room, pod))
    priced: list[tuple[_Cost, list[int]]] = []
    row, so_far = -1, (0, 0.0, 0)
    for at, members in found:
        cost = _cost([victims[i] for i in members])
        so_far = max(so_far, cost) if at == row else cost  # the next pod of a node never comes before the one before
        row = at
        priced.append((so_far, members))
    priced.sort(key=lambda one: one[0])
    bundled = {i for _, members in priced for i in members}
    alone = [(victim,) for i, victim in enumerate(victims) if i not in bundled]
    return [*(tuple(victims[i] for i in members) for _, members in priced), *alone]


def _freed(victims: Sequence[Victim]) -> tuple[IntArray, IntArray, IntArray]:
    """One line for every node of every victim: the victim's place in the order, the row, and what it frees there. Who
    may shrink comes twice; its leaving frees what shrinking has not freed before."""
    shrunk = {victim.gang.uid: victim.freed.load for victim in victims if victim.kept}
    loads = [
        _less(victim.freed.load, shrunk[victim.gang.uid])
        if not victim.kept and victim.gang.uid in shrunk
        else victim.freed.load
        for victim in victims
    ]
    owners = np.repeat(np.arange(len(loads), dtype=np.int64), [len(load.rows) for load in loads])
    return owners, np.concatenate([load.rows for load in loads]), np.concatenate([load.amounts for load in loads])


def _less(load: Load, before: Load) -> Load:
    amounts = load.amounts.copy()
    amounts[np.searchsorted(load.rows, before.rows)] -= before.amounts
    return Load(load.rows, amounts)


def _gains(rows: IntArray, freed: IntArray, room: Room, pod: PodKind) -> BoolArray:
    """For each line, which are sorted by row: does it make room for one more pod, after those above it?"""
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    total = np.cumsum(freed, axis=0)
    starts = np.flatnonzero(first)
    before_node = np.repeat(total[starts] - freed[starts], np.diff(np.append(starts, len(rows))), axis=0)
    fits = fitting(room.table, pod, room.free[rows] + total - before_node)
    before = np.empty_like(fits)
    before[1:] = fits[:-1]
    before[first] = fitting(room.table, pod, room.free[rows[first]])
    return fits > before


def _cut(owners: IntArray, rows: IntArray, gains: BoolArray) -> list[tuple[int, list[int]]]:
    """Row and members of each bundle: on each node, a bundle ends with who makes room for one more pod."""
    found: list[tuple[int, list[int]]] = []
    members: list[int] = []
    row = -1
    for owner, at, gain in zip(owners.tolist(), rows.tolist(), gains.tolist(), strict=True):
        if at != row:
            row, members = at, []
        members.append(owner)
        if gain:
            found.append((at, members))
            members = []
    return found


def _cost(members: Sequence[Victim]) -> _Cost:
    return max(v.gang.priority for v in members), sum(v.lost_work_s for v in members), len(members)
