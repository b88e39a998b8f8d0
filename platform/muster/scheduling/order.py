"""Who goes next.

Between queues, at each level of the tree: whose next gang is within its leaf's guarantee, then whose next gang is
within the guarantee of the child at this level, then the smallest share of decayed usage, then the name. In a leaf:
priority high to low, first submit time, uid; but a gang that is larger than the leaf's whole guarantee and hence must
borrow in any case does not hide those behind it that are within it: a borrower of another queue would start, and they
would reclaim from it at once. A gang counts by the best of its flavors until it turns out in which one it would be
placed; if it is entitled to less there, its turn comes later. Shares and guarantees shift while a plan places gangs, so
the tree is a tree of heaps: only the path of the gang just decided is ordered again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Protocol, TypeAlias

from muster.model import Gang, Usage
from muster.quota import Amounts, QueueTree
from muster.scheduling.entitle import Entitlement, Within
from muster.scheduling.leaves import IN_LEAF, Leaf, Order, Waiting
from muster.scheduling.policy import Policy
from muster.scheduling.shape import Request

SHARE_TICK_S = 60.0
"""A gang placed by a plan counts at once with so many seconds of its request: one share tick."""


PassOver: TypeAlias = Callable[[list[Waiting], Order | None], bool]


class Line(Protocol):
    """Gangs in the order of their turn."""

    def __iter__(self) -> Iterator[Waiting]: ...

    def placed(self, queue: int, amounts: Amounts) -> None:
        """The gang that was last handed out got room."""
        ...

    def postponed(self, gang: Gang, request: Request, option: int) -> bool:
        """Tell whether the gang that was last handed out comes too early to be placed in this option: then it comes
        again, in the turn of a gang of that option."""
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

    def postponed(self, gang: Gang, request: Request, option: int) -> bool:
        """Never: options make no difference."""
        return False


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
        self._again = False  # was it postponed?
        self._option: dict[str, int] = {}  # in which gangs that were postponed would be placed, by uid
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
                entries = self._next(leaf)
                waiting = entries.pop()
                yield waiting
                if self._again:  # its leaf waits with it: who comes behind it would use up what it is entitled to
                    entries.append(waiting)
                    self._again = False
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

    def postponed(self, gang: Gang, request: Request, option: int) -> bool:
        """It was handed out for the best of its options; is it entitled to less in this one, at some level?"""
        if len(request.shape.options) == 1 or option <= self._option.get(gang.uid, -1):
            return False
        turn, placed = self._within(gang, request), (self._entitlement.of(request)[option],)
        if all(_rank(placed, place) <= _rank(turn, place) for place in range(len(self._tree.path[request.queue]))):
            return False
        self._option[gang.uid] = option
        self._again = True
        return True

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
        return leaf.borrowers if _rank(self._within(first.gang, first.request), 0) else leaf.entitled

    def _within(self, gang: Gang, request: Request) -> Within:
        """The guarantees that a gang is within: in each of its options, or in the one it was postponed for."""
        within = self._entitlement.of(request)
        if gang.uid not in self._option:
            return within
        return (within[self._option[gang.uid]],)

    def _key(self, queue: int, head: Waiting) -> tuple[int, float, str]:
        place = len(self._tree.path[head.request.queue]) - len(self._tree.path[queue])
        rank = _rank(self._within(head.gang, head.request), place)
        return rank, self._shares.of[queue], self._tree.queues[queue].name


def _rank(within: Within, place: int) -> int:
    """The best of some options: 0 within the leaf's guarantee, 1 within that of the queue at this place of the path."""
    rank = 2
    for option in within:
        if option & 1:
            return 0
        if option >> place & 1:
            rank = 1
    return rank


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
