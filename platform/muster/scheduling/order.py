"""Who goes next.

Between queues, at each level of the tree: whose next gang is within its leaf's guarantee, then whose next gang is
within the guarantee of the child at this level, then the smallest share of decayed usage, then the name. In a leaf:
priority high to low, first submit time, uid; but a gang that is larger than the leaf's whole guarantee and hence must
borrow in any case does not hide those behind it that are within it: a borrower of another queue would start, and they
would reclaim from it at once. Shares and guarantees shift while a plan places gangs, so the tree is a tree of heaps:
only the path of the gang just decided is ordered again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Protocol, TypeAlias

from muster.model import Usage
from muster.quota import Amounts, QueueTree
from muster.scheduling.entitle import Entitlement
from muster.scheduling.leaves import IN_LEAF, Leaf, Order, Waiting
from muster.scheduling.policy import Policy

SHARE_TICK_S = 60.0
"""A gang placed by a plan counts at once with so many seconds of its request: one share tick."""


PassOver: TypeAlias = Callable[[list[Waiting], Order | None], bool]


class Line(Protocol):
    """Gangs in the order of their turn."""

    def __iter__(self) -> Iterator[Waiting]: ...

    def placed(self, queue: int, amounts: Amounts) -> None:
        """The gang that was last handed out got room."""
        ...


def line(
    leaves: Mapping[int, Leaf],
    spoken: Collection[str],
    entitlement: Entitlement,
    shares: Shares,
    policy: Policy,
    pass_over: PassOver,
) -> Line:
    """The line that a policy asks for, of all who wait but those whose uids are `spoken` of already.

    `pass_over` refuses, at the end of a list of gangs and up to a place in the order, those of whose turns nothing
    would come, and tells whether it ended at one whose turn matters: in a fair line they go together with the one
    before them.
    """
    if policy.order == "fair":
        return FairLine(leaves, spoken, entitlement, shares, pass_over)
    waiting = [w for leaf in leaves.values() for w in leaf.everyone if w.gang.uid not in spoken]
    if policy.order == "priority":
        return FlatLine(sorted(waiting, key=IN_LEAF))
    return FlatLine(sorted(waiting, key=lambda w: w.order[1:]))


class FlatLine:
    """An order that does not change while a plan is made."""

    def __init__(self, waiting: list[Waiting]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def placed(self, queue: int, amounts: Amounts) -> None:
        """Nothing shifts."""


class FairLine:
    """Down the queue tree by guarantee and share."""

    def __init__(
        self,
        leaves: Mapping[int, Leaf],
        spoken: Collection[str],
        entitlement: Entitlement,
        shares: Shares,
        pass_over: PassOver,
    ) -> None:
        self._entitlement = entitlement
        self._pass_over = pass_over
        self._shares = shares
        tree = self._tree = shares.tree
        self._leaves: dict[int, _Leaf] = {}
        for queue, leaf in leaves.items():
            entitled = [waiting for waiting in reversed(leaf.entitled) if waiting.gang.uid not in spoken]
            borrowers = [waiting for waiting in reversed(leaf.borrowers) if waiting.gang.uid not in spoken]
            if entitled or borrowers:
                self._leaves[queue] = _Leaf(entitled, borrowers)
        self._shifted = False  # did the last gang handed out get room?
        self._heaps: dict[int, list[tuple[tuple[int, float, str], int]]] = {}
        inside: dict[int, set[int]] = {-1: set()}  # queues with somebody below, by the queue above; -1: above the roots
        for queue in self._leaves:
            for child, above in pairwise((*tree.path[queue], -1)):
                inside.setdefault(above, set()).add(child)
        for above in sorted(inside, key=lambda q: -len(tree.path[q]) if q >= 0 else 0):  # children before parents
            heads = [(child, self._head(child)) for child in inside[above]]
            self._heaps[above] = [(self._key(child, head), child) for child, head in heads if head is not None]
            heapify(self._heaps[above])

    def __iter__(self) -> Iterator[Waiting]:
        top = self._heaps.get(-1, [])
        while top:
            queue = top[0][1]
            while queue not in self._leaves:
                queue = self._heaps[queue][0][1]
            leaf = self._leaves[queue]
            before = len(leaf.entitled) + len(leaf.borrowers)
            self._pass(leaf)
            if before == len(leaf.entitled) + len(leaf.borrowers):
                yield self._next(leaf).pop()
                self._pass(leaf)
            self._reorder(queue)

    def _pass(self, leaf: _Leaf) -> None:
        """Pass over those next in a leaf of whose turns nothing would come."""
        while entries := self._next(leaf):
            limit = None
            if leaf.entitled and leaf.borrowers:  # as far as the other list need not be looked at
                limit = max(leaf.entitled[-1].order, leaf.borrowers[-1].order)
            if self._pass_over(entries, limit):
                return

    def placed(self, queue: int, amounts: Amounts) -> None:
        """Count the gang that was last handed out towards the shares of its queues."""
        self._shares.add(queue, amounts, SHARE_TICK_S)
        self._shifted = True

    def _reorder(self, leaf: int) -> None:
        """Give the path of a leaf, which is at the top of every heap, its new place."""
        child = leaf
        for above in (*self._tree.path[leaf][1:], -1):
            heap = self._heaps[above]
            head = self._head(child)
            key = None if head is None else self._key(child, head)
            if key is None:
                heappop(heap)
            elif key != heap[0][0]:
                heapreplace(heap, (key, child))
            elif child == leaf and not self._shifted and key[0] == 0:
                return  # the leaf's next gang is within its guarantee like the last one: nothing changes above
            child = above
        self._shifted = False

    def _head(self, queue: int) -> Waiting | None:
        leaf = self._leaves.get(queue)
        while leaf is None:
            heap = self._heaps[queue]
            if not heap:
                return None
            queue = heap[0][1]
            leaf = self._leaves.get(queue)
        entries = self._next(leaf)
        return entries[-1] if entries else None

    def _next(self, leaf: _Leaf) -> list[Waiting]:
        """The list whose last gang comes next."""
        if not leaf.borrowers or not leaf.entitled:
            return leaf.entitled or leaf.borrowers
        first = leaf.entitled[-1]
        if first.order < leaf.borrowers[-1].order:
            return leaf.entitled
        within = any(option & 1 for option in self._entitlement.of(first.request))
        return leaf.entitled if within else leaf.borrowers

    def _key(self, queue: int, head: Waiting) -> tuple[int, float, str]:
        request, rank = head.request, 2
        place = len(self._tree.path[request.queue]) - len(self._tree.path[queue])
        for option in self._entitlement.of(request):
            if option & 1:
                rank = 0
            elif rank == 2 and option >> place & 1:
                rank = 1
        return rank, self._shares.of[queue], self._tree.queues[queue].name


@dataclass(slots=True)
class _Leaf:
    """Gangs of one leaf, the next one last; `borrowers` are larger than its guarantee."""

    entitled: list[Waiting]
    borrowers: list[Waiting]


class Shares:
    """share(q) = max over cells of decayed resource-seconds / (weight x the root's total)."""

    def __init__(self, tree: QueueTree, usage: Iterable[Usage]) -> None:
        self.tree = tree
        self._seconds = [[0.0] * len(tree.cells) for _ in tree.queues]
        self.of = [0.0] * len(tree.queues)
        for entry in usage:
            queue, cell = tree.index.get(entry.queue), tree.cells.get((entry.flavor, entry.resource))
            if queue is not None and cell is not None:
                self._add(queue, cell, entry.resource_seconds)

    def add(self, queue: int, amounts: Amounts, seconds: float) -> None:
        """Count amounts used for so long."""
        for cell, amount in amounts:
            self._add(queue, cell, amount * seconds)

    def _add(self, queue: int, cell: int, resource_seconds: float) -> None:
        total = self.tree.total[self.tree.root(queue)][cell]
        for q in self.tree.path[queue]:
            self._seconds[q][cell] += resource_seconds
            if total > 0:
                share = self._seconds[q][cell] / (self.tree.queues[q].weight * total)
                self.of[q] = max(self.of[q], share)
