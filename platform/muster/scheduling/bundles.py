"""Victims put together who make room for a pod only together.

Asked one by one, cheapest first, victims may be spread so thinly over the nodes that none gets empty before a borrower
is back at its guarantee, and nobody may be asked any more. Put together by node, those come first who make room for one
more pod at the least cost: the rest of their order is as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from muster.scheduling.nodes import BoolArray, NodeTable
from muster.scheduling.room import Load, PodKind, Room, fitting
from muster.scheduling.shape import Option
from muster.scheduling.victims import Victim

_Cost: TypeAlias = tuple[bool, int, float, int]  # does anybody leave, highest priority, lost work, how many
_Amounts: TypeAlias = list[int]  # of what the pod asks for
_Line: TypeAlias = tuple[int, int, _Amounts]  # row, place of the victim in the order, what it frees there


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Room for one more pod of a kind, on a row of the node table."""

    pod: PodKind
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Victims who are asked together or not at all, for what is `wanted`; None: for whatever the one of them frees."""

    members: tuple[Victim, ...]
    wanted: Wanted | None = None


def alone(victims: Iterable[Victim]) -> Iterator[Bundle]:
    """Each for itself."""
    return (Bundle((victim,)) for victim in victims)


def hardest(table: NodeTable, option: Option) -> PodKind:
    """The kind of pod of a gang of which the fewest would fit the empty nodes."""

    def fit_empty(pod: PodKind) -> int:
        span = table.flavors[pod.flavor]
        return int(fitting(table, pod, table.empty[span.start : span.stop]).sum())

    return min((pod for spot in option.spots for pod in spot.pods), key=fit_empty)


class Bundles:
    """All bundles for one kind of pod. `victims` are in the order to ask; `room` is what is free before any left."""

    def __init__(self, victims: Sequence[Victim], room: Room, pod: PodKind) -> None:
        self._victims = victims
        self._pod = pod
        self._priced: list[tuple[_Cost, int, list[int]]] = []
        columns = [(room.table.columns[name], amount) for name, amount in pod.request if name in room.table.columns]
        asked = [amount for _, amount in columns]
        span, usable = room.table.flavors[pod.flavor], room.usable(pod)
        lines = sorted(_lines(victims, [column for column, _ in columns]), key=itemgetter(0, 1))
        for row, on_row in groupby(lines, key=itemgetter(0)):
            if span.start <= row < span.stop and usable[row - span.start]:
                free = [int(room.free[row, column]) for column, _ in columns]
                self._price(row, _cut(free, asked, [(i, freed) for _, i, freed in on_row]))
        self._priced.sort(key=itemgetter(0))

    def within(self, region: BoolArray) -> Iterator[Bundle]:
        """Those on nodes of a region, in the order to ask; at the end everybody who is in none of them, alone."""
        bundled: set[int] = set()
        for _, row, members in self._priced:
            if region[row]:
                bundled.update(members)
                yield Bundle(tuple(self._victims[i] for i in members), Wanted(self._pod, row))
        yield from alone(victim for i, victim in enumerate(self._victims) if i not in bundled)

    def _price(self, row: int, found: Iterable[list[int]]) -> None:
        so_far: _Cost | None = None
        for members in found:
            cost = _cost([self._victims[i] for i in members])
            so_far = cost if so_far is None else max(so_far, cost)  # the next pod never comes before the one before
            self._priced.append((so_far, row, members))


def _cost(members: Sequence[Victim]) -> _Cost:
    leave, highest = any(not v.kept for v in members), max(v.gang.priority for v in members)
    return leave, highest, sum(v.lost_work_s for v in members), len(members)


def _lines(victims: Sequence[Victim], columns: list[int]) -> Iterator[_Line]:
    """Who may shrink comes twice; its leaving frees what shrinking has not freed before."""
    shrunk = {victim.gang.uid: victim.freed.load for victim in victims if victim.kept}
    for i, victim in enumerate(victims):
        load = victim.freed.load
        if not victim.kept and victim.gang.uid in shrunk:
            load = _less(load, shrunk[victim.gang.uid])
        for row, amounts in zip(load.rows.tolist(), load.amounts[:, columns].tolist(), strict=True):
            yield row, i, amounts


def _less(load: Load, before: Load) -> Load:
    amounts = load.amounts.copy()
    amounts[np.searchsorted(load.rows, before.rows)] -= before.amounts
    return Load(load.rows, amounts)


def _cut(free: _Amounts, asked: _Amounts, lines: Iterable[tuple[int, _Amounts]]) -> Iterator[list[int]]:
    """On one node, in order: victims who make room for one more pod, none of them needless."""
    waiting: list[tuple[int, _Amounts]] = []
    total = list(free)
    pods = _pods(free, asked)
    for line in lines:
        waiting.append(line)
        total = _plus(total, line[1])
        while _pods(total, asked) > pods:
            members, left, rest = list(waiting), list(total), []
            for one in reversed(waiting):  # the dearest first
                without = _minus(left, one[1])
                if _pods(without, asked) > pods:
                    left = without
                    members.remove(one)
                    rest.append(one)
            waiting, pods = rest[::-1], _pods(left, asked)
            yield [i for i, _ in members]


def _pods(free: _Amounts, asked: _Amounts) -> int:
    """How many fit; what asks for nothing needs nobody to leave."""
    return max(0, min((have // amount for have, amount in zip(free, asked, strict=True) if amount), default=0))


def _plus(left: _Amounts, right: _Amounts) -> _Amounts:
    return [a + b for a, b in zip(left, right, strict=True)]


def _minus(left: _Amounts, right: _Amounts) -> _Amounts:
    return [a - b for a, b in zip(left, right, strict=True)]
