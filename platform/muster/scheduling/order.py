"""Who goes next.

Between queues, at each level of the tree: whose next gang is within its leaf's guarantee, then whose next gang is
within the guarantee of the child at this level, then the smallest share of decayed usage, then the name. In a leaf:
priority high to low, first submit time, uid; but a gang that is larger than the leaf's whole guarantee and hence must
borrow in any case does not hide those behind it that are within it: a borrower of another queue would start, and they
would reclaim from it at once. Shares and guarantees shift while a plan places gangs, so the tree is a tree of heaps:
only the path of the gang just decided is ordered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Protocol, TypeAlias

from muster.model import Gang, Usage
from muster.quota import Amounts, QueueTree
from muster.scheduling.entitle import Entitlement
from muster.scheduling.policy import Policy
from muster.scheduling.shape import Request

SHARE_TICK_S = 60.0
"""A gang placed by a plan counts at once with so many seconds of its request: one share tick."""

Waiting: TypeAlias = tuple[Gang, Request]


def leaf_order(waiting: Waiting) -> tuple[int, float, str]:
    """The order inside a leaf."""
    gang = waiting[0]
    return -gang.priority, gang.submitted_at, gang.uid


class Line(Protocol):
    """Gangs in the order of their turn."""

    def __iter__(self) -> Iterator[Waiting]: ...

    def placed(self, queue: int, amounts: Amounts) -> None:
        """The gang that was last handed out got room."""
        ...


def line(
    waiting: Iterable[Waiting],
    tree: QueueTree,
    entitlement: Entitlement,
    usage: Iterable[Usage],
    policy: Policy,
    hopeless: Callable[[Waiting], bool],
) -> Line:
    """The line that a policy asks for.

    `hopeless` tells of a gang that nothing will come of its turn: it has it together with the one before it.
    """
    if policy.order == "fair":
        return FairLine(waiting, tree, entitlement, usage, hopeless)
    if policy.order == "priority":
        return FlatLine(sorted(waiting, key=leaf_order))
    return FlatLine(sorted(waiting, key=lambda w: (w[0].submitted_at, w[0].uid)))


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
        waiting: Iterable[Waiting],
        tree: QueueTree,
        entitlement: Entitlement,
        usage: Iterable[Usage],
        hopeless: Callable[[Waiting], bool],
    ) -> None:
        self._entitlement = entitlement
        self._hopeless = hopeless
        self._tree = tree
        self._leaves: dict[int, _Leaf] = {}
        for entry in waiting:
            queue = entry[1].queue
            leaf = self._leaves.get(queue)
            if leaf is None:
                leaf = self._leaves[queue] = _Leaf([], [])
            could = any(option & 1 for option in entry[1].could)
            (leaf.entitled if could else leaf.borrowers).append(entry)
        for leaf in self._leaves.values():
            leaf.entitled.sort(key=leaf_order, reverse=True)
            leaf.borrowers.sort(key=leaf_order, reverse=True)
        self._shares = Shares(tree, usage)
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
            yield self._next(leaf).pop()
            while (entries := self._next(leaf)) and self._hopeless(entries[-1]):
                yield entries.pop()
            self._reorder(queue)

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
        first, borrower = leaf.entitled[-1], leaf.borrowers[-1]
        if leaf_order(first) < leaf_order(borrower):
            return leaf.entitled
        within = any(option & 1 for option in self._entitlement.of(first[1]))
        return leaf.entitled if within else leaf.borrowers

    def _key(self, queue: int, head: Waiting) -> tuple[int, float, str]:
        request, rank = head[1], 2
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
        self._tree = tree
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
        total = self._tree.total[self._tree.root(queue)][cell]
        for q in self._tree.path[queue]:
            self._seconds[q][cell] += resource_seconds
            if total > 0:
                share = self._seconds[q][cell] / (self._tree.queues[q].weight * total)
                self.of[q] = max(self.of[q], share)
