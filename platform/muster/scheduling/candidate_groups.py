"""Groups of victims that together free capacity for one more pod.

Evicted one by one, cheapest first, victims may be spread over so many nodes that no node becomes free before the
borrower is back within its guarantee and can no longer be preempted. So they are grouped by node: the group that frees
one more pod at the least cost comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from muster.scheduling.capacity import FreeCapacity, NodeUsage, PodClass, pods_per_node
from muster.scheduling.gang_requests import FlavorOption
from muster.scheduling.nodes import BoolArray, NodeTable
from muster.scheduling.preemption_candidates import Victim

# whether a gang is evicted, highest priority, lost work, number of victims
_Cost: TypeAlias = tuple[bool, int, float, int]
_Amounts: TypeAlias = list[int]  # of the resources that the pod requests
_Line: TypeAlias = tuple[int, int, _Amounts]  # row, index of the victim, what it frees on the row


@dataclass(frozen=True, slots=True, eq=False)
class TargetNode:
    """One more pod of a class on a row of the node table."""

    pod: PodClass
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class CandidateGroup:
    """Victims that are preempted together or not at all, to free `target`; None: for what a single victim frees."""

    members: tuple[Victim, ...]
    target: TargetNode | None = None


def single_groups(victims: Iterable[Victim]) -> Iterator[CandidateGroup]:
    """One group per victim."""
    return (CandidateGroup((victim,)) for victim in victims)


def hardest_pod(table: NodeTable, option: FlavorOption) -> PodClass:
    """The pod class of a gang of which the fewest pods would fit the empty nodes."""

    def fit_empty(pod: PodClass) -> int:
        span = table.flavors[pod.flavor]
        return int(pods_per_node(table, pod, table.usable[span.start : span.stop]).sum())

    return min((pod for group in option.groups for pod in group.pods), key=fit_empty)


class NodeCandidateGroups:
    """All groups for one pod class. `victims` are in preemption order; `capacity` is free before any is evicted."""

    def __init__(self, victims: Sequence[Victim], capacity: FreeCapacity, pod: PodClass) -> None:
        self._victims = victims
        self._pod = pod
        self._by_cost: list[tuple[_Cost, int, list[int]]] = []
        columns = [
            (capacity.table.columns[name], amount) for name, amount in pod.request if name in capacity.table.columns
        ]
        requested = [amount for _, amount in columns]
        span, usable = capacity.table.flavors[pod.flavor], capacity.usable(pod)
        victim_rows = sorted(_victim_lines(victims, [column for column, _ in columns]), key=itemgetter(0, 1))
        for row, on_row in groupby(victim_rows, key=itemgetter(0)):
            if span.start <= row < span.stop and usable[row - span.start]:
                free = [int(capacity.free[row, column]) for column, _ in columns]
                self._add_costs(row, _minimal_groups(free, requested, [(i, freed) for _, i, freed in on_row]))
        self._by_cost.sort(key=itemgetter(0))

    def within(self, region: BoolArray) -> Iterator[CandidateGroup]:
        """Groups on nodes of a region, cheapest first; then every victim that is in none of them, alone."""
        grouped: set[int] = set()
        for _, row, members in self._by_cost:
            if region[row]:
                grouped.update(members)
                yield CandidateGroup(tuple(self._victims[i] for i in members), TargetNode(self._pod, row))
        yield from single_groups(victim for i, victim in enumerate(self._victims) if i not in grouped)

    def _add_costs(self, row: int, found: Iterable[list[int]]) -> None:
        so_far: _Cost | None = None
        for members in found:
            cost = _cost([self._victims[i] for i in members])
            so_far = cost if so_far is None else max(so_far, cost)  # groups of one node keep their order
            self._by_cost.append((so_far, row, members))


def _cost(members: Sequence[Victim]) -> _Cost:
    evicts, highest = any(not v.remaining for v in members), max(v.gang.priority for v in members)
    return evicts, highest, sum(v.lost_work_s for v in members), len(members)


def _victim_lines(victims: Sequence[Victim], columns: list[int]) -> Iterator[_Line]:
    """What each victim frees on each row. A gang that can shrink appears twice: evicting it frees what shrinking did
    not."""
    shrunk = {victim.gang.uid: victim.freed.node_usage for victim in victims if victim.remaining}
    for i, victim in enumerate(victims):
        usage = victim.freed.node_usage
        if not victim.remaining and victim.gang.uid in shrunk:
            usage = _less(usage, shrunk[victim.gang.uid])
        for row, amounts in zip(usage.rows.tolist(), usage.amounts[:, columns].tolist(), strict=True):
            yield row, i, amounts


def _less(usage: NodeUsage, before: NodeUsage) -> NodeUsage:
    amounts = usage.amounts.copy()
    amounts[np.searchsorted(usage.rows, before.rows)] -= before.amounts
    return NodeUsage(usage.rows, amounts)


def _minimal_groups(
    free: _Amounts, request: _Amounts, victim_rows: Iterable[tuple[int, _Amounts]]
) -> Iterator[list[int]]:
    """On one node, in order: minimal sets of victims that free one more pod each."""
    waiting: list[tuple[int, _Amounts]] = []
    total = list(free)
    pods = _pods_that_fit(free, request)
    for victim_row in victim_rows:
        waiting.append(victim_row)
        total = _plus(total, victim_row[1])
        while _pods_that_fit(total, request) > pods:
            members, left, rest = list(waiting), list(total), []
            for line in reversed(waiting):  # drop the most expensive first
                without = _minus(left, line[1])
                if _pods_that_fit(without, request) > pods:
                    left = without
                    members.remove(line)
                    rest.append(line)
            waiting, pods = rest[::-1], _pods_that_fit(left, request)
            yield [i for i, _ in members]


def _pods_that_fit(free: _Amounts, request: _Amounts) -> int:
    """Pods that fit; 0 for a pod that requests nothing."""
    return max(0, min((have // amount for have, amount in zip(free, request, strict=True) if amount), default=0))


def _plus(left: _Amounts, right: _Amounts) -> _Amounts:
    return [a + b for a, b in zip(left, right, strict=True)]


def _minus(left: _Amounts, right: _Amounts) -> _Amounts:
    return [a - b for a, b in zip(left, right, strict=True)]
