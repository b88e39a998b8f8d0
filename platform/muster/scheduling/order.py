"""The order in which gangs are scheduled, and the rules that a plan follows: Muster's own, and simple ones to compare.

Between queues, at each level of the tree: first the queue whose next gang is within its leaf's guarantee, then whose
next gang is within the guarantee of the child at this level, then the smallest share of decayed usage, then the name.
In a leaf: priority high to low, first submit time, uid; but a gang larger than the leaf's whole guarantee, which must
borrow in any case, does not block gangs behind it that are within the guarantee: otherwise a borrower of another queue
would start, and they would reclaim from it at once.

A gang counts by the best of its flavors until it is known in which one it would be placed; if it has a lower rank
there, its turn comes later. Shares and guarantees change with each admission, so the tree is a tree of heaps: only the
path of the last gang is sorted again.

A gang is within the guarantee of a queue on its path if the queue's usage plus the gang's request stay below it. But it
is not eligible for a guarantee that a gang ahead of it in the same leaf waits for and would fit once other gangs of the
leaf have ended: otherwise small gangs, each within what is left of the guarantee, would pass a large one forever, or
reclaim capacity while it waits. A gang ahead that must borrow in any case does not block smaller gangs behind it.
Terminating gangs do not count: others may use their guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Literal, Protocol, TypeAlias

from muster.model import DecayedUsage, Gang
from muster.quota import CellAmounts, QueueTree
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.planner_cache import BY_LEAF_ORDER, LeafOrder, LeafQueue, PendingGang
from muster.scheduling.versioned_cache import VersionedCache


@dataclass(frozen=True, slots=True)
class Policy:
    """Quota, flavors, topology and nominations are the same under every policy.

    `order`: `fair` goes down the queue tree by guarantee and share, and by priority in the leaf; `submitted` and
    `priority` ignore queues. `backfill`: whether gangs may start behind one that waits: `none` (it blocks all others),
    or `easy` (gangs that do not delay its reservation).
    """

    name: str
    order: Literal["fair", "submitted", "priority"]
    backfill: Literal["none", "easy"]
    preempts: bool = False
    grows_elastic: bool = False


MUSTER = Policy("muster", order="fair", backfill="easy", preempts=True, grows_elastic=True)
FIFO = Policy("fifo", order="submitted", backfill="none")
PRIORITY = Policy("priority", order="priority", backfill="none")
BACKFILL = Policy("backfill", order="submitted", backfill="easy")


SHARE_TICK_S = 60.0
"""An admitted gang counts at once with its request times this many seconds: one share tick."""


SkipRejected: TypeAlias = Callable[[list[PendingGang], LeafOrder | None], bool]


class QueueOrder(Protocol):
    """Gangs in the order of their turn."""

    def __iter__(self) -> Iterator[PendingGang]: ...

    def on_admitted(self, queue: int, amounts: CellAmounts) -> None:
        """The last gang was admitted."""
        ...

    def postpone(self, gang: Gang, request: QueueRequest, option: int) -> bool:
        """Whether it is too early to place the last gang in this option; if so it comes again, in the turn of a gang of
        that option."""
        ...


def queue_order(
    leaves: Mapping[int, LeafQueue],
    decided: Collection[str],
    guarantees: GuaranteeEligibility,
    shares: FairShares,
    policy: Policy,
    skip_rejected: SkipRejected,
) -> QueueOrder:
    """The queue order of a policy, of all pending gangs without those already `decided`.

    `skip_rejected` rejects gangs at the end of a list, up to a position, whose turns would have no effect, and returns
    whether it ended at one whose turn has: in a fair order they go together with the gang before them.
    """
    if policy.order == "fair":
        return FairShareOrder(leaves, decided, guarantees, shares, skip_rejected)
    waiting = [w for leaf in leaves.values() for w in leaf.pending if w.gang.uid not in decided]
    if policy.order == "priority":
        return StaticOrder(sorted(waiting, key=BY_LEAF_ORDER))
    return StaticOrder(sorted(waiting, key=lambda w: w.order[1:]))


class StaticOrder:
    """An order that does not change during a plan."""

    def __init__(self, waiting: list[PendingGang]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[PendingGang]:
        return iter(self._waiting)

    def on_admitted(self, queue: int, amounts: CellAmounts) -> None:
        """No effect."""

    def postpone(self, gang: Gang, request: QueueRequest, option: int) -> bool:
        """Never: options make no difference."""
        return False


class FairShareOrder:
    """Down the queue tree by guarantee and share."""

    def __init__(
        self,
        leaves: Mapping[int, LeafQueue],
        decided: Collection[str],
        guarantees: GuaranteeEligibility,
        shares: FairShares,
        skip_rejected: SkipRejected,
    ) -> None:
        self._guarantees = guarantees
        self._skip_rejected = skip_rejected
        self._shares = shares
        tree = self._tree = shares.tree
        self._leaves: dict[int, _Leaf] = {}
        for queue, leaf in leaves.items():
            entitled = [waiting for waiting in reversed(leaf.entitled) if waiting.gang.uid not in decided]
            borrowers = [waiting for waiting in reversed(leaf.borrowers) if waiting.gang.uid not in decided]
            if entitled or borrowers:
                self._leaves[queue] = _Leaf(entitled, borrowers)
        self._last_admitted = False  # whether the last gang was admitted
        self._last_postponed = False  # whether it was postponed
        self._postponed_option: dict[str, int] = {}  # the option in which a postponed gang would be placed, by uid
        self._heaps: dict[int, list[tuple[tuple[int, float, str], int]]] = {}
        inside: dict[int, set[int]] = {-1: set()}  # queues with pending gangs, by parent; -1: the roots
        for queue in self._leaves:
            for child, above in pairwise((*tree.path[queue], -1)):
                inside.setdefault(above, set()).add(child)
        for above in sorted(inside, key=lambda q: -len(tree.path[q]) if q >= 0 else 0):  # children before parents
            heads = [(child, self._head(child)) for child in inside[above]]
            self._heaps[above] = [(self._key(child, head), child) for child, head in heads if head is not None]
            heapify(self._heaps[above])

    def __iter__(self) -> Iterator[PendingGang]:
        top = self._heaps.get(-1, [])
        while top:
            queue = top[0][1]
            while queue not in self._leaves:
                queue = self._heaps[queue][0][1]
            leaf = self._leaves[queue]
            before = len(leaf.entitled) + len(leaf.borrowers)
            self._skip(leaf)
            if before == len(leaf.entitled) + len(leaf.borrowers):
                entries = self._next(leaf)
                waiting = entries.pop()
                yield waiting
                if self._last_postponed:  # its leaf waits with it: gangs behind it would use up its guarantee
                    entries.append(waiting)
                    self._last_postponed = False
                self._skip(leaf)
            self._reorder(queue)

    def _skip(self, leaf: _Leaf) -> None:
        """Skip the next gangs of a leaf whose turns would have no effect."""
        while entries := self._next(leaf):
            limit = None
            if leaf.entitled and leaf.borrowers:  # only up to where the other list matters
                limit = max(leaf.entitled[-1].order, leaf.borrowers[-1].order)
            if self._skip_rejected(entries, limit):
                return

    def on_admitted(self, queue: int, amounts: CellAmounts) -> None:
        """Add the last gang to the shares of its queues."""
        self._shares.add(queue, amounts, SHARE_TICK_S)
        self._last_admitted = True

    def postpone(self, gang: Gang, request: QueueRequest, option: int) -> bool:
        """Whether the last gang, which had its turn for its best option, has a lower rank in this one at some level."""
        if len(request.gang_request.options) == 1 or option <= self._postponed_option.get(gang.uid, -1):
            return False
        best, placed = self._covered(gang, request), (self._guarantees.covered(request)[option],)
        if all(
            _guarantee_order(placed, position) <= _guarantee_order(best, position)
            for position in range(len(self._tree.path[request.queue]))
        ):
            return False
        self._postponed_option[gang.uid] = option
        self._last_postponed = True
        return True

    def _reorder(self, leaf: int) -> None:
        """Update the position of a leaf's path, which is at the top of every heap."""
        child = leaf
        for above in (*self._tree.path[leaf][1:], -1):
            heap = self._heaps[above]
            head = self._head(child)
            key = None if head is None else self._key(child, head)
            if key is None:
                heappop(heap)
            elif key != heap[0][0]:
                heapreplace(heap, (key, child))
            elif child == leaf and not self._last_admitted and key[0] == 0:
                return  # the leaf's next gang is within its guarantee like the last one: no change above
            child = above
        self._last_admitted = False

    def _head(self, queue: int) -> PendingGang | None:
        leaf = self._leaves.get(queue)
        while leaf is None:
            heap = self._heaps[queue]
            if not heap:
                return None
            queue = heap[0][1]
            leaf = self._leaves.get(queue)
        entries = self._next(leaf)
        return entries[-1] if entries else None

    def _next(self, leaf: _Leaf) -> list[PendingGang]:
        """The list whose last gang is next."""
        if not leaf.borrowers or not leaf.entitled:
            return leaf.entitled or leaf.borrowers
        first = leaf.entitled[-1]
        if first.order < leaf.borrowers[-1].order:
            return leaf.entitled
        return leaf.borrowers if _guarantee_order(self._covered(first.gang, first.request), 0) else leaf.entitled

    def _covered(self, gang: Gang, request: QueueRequest) -> CoveredGuarantees:
        """The guarantees that a gang is within: in each option, or in the one it was postponed for."""
        covered = self._guarantees.covered(request)
        if gang.uid not in self._postponed_option:
            return covered
        return (covered[self._postponed_option[gang.uid]],)

    def _key(self, queue: int, head: PendingGang) -> tuple[int, float, str]:
        position = len(self._tree.path[head.request.queue]) - len(self._tree.path[queue])
        rank = _guarantee_order(self._covered(head.gang, head.request), position)
        return rank, self._shares.by_queue[queue], self._tree.queues[queue].name


def _guarantee_order(covered: CoveredGuarantees, position: int) -> int:
    """The best rank of some options: 0 within the leaf's guarantee, 1 within that of the queue at this position of the
    path."""
    rank = 2
    for option in covered:
        if option & 1:
            return 0
        if option >> position & 1:
            rank = 1
    return rank


@dataclass(slots=True)
class _Leaf:
    """Gangs of one leaf, the next one last; `borrowers` are larger than its guarantee."""

    entitled: list[PendingGang]
    borrowers: list[PendingGang]


class FairShares:
    """share(q) = max over cells of decayed resource-seconds / (weight x the root's total)."""

    def __init__(self, tree: QueueTree, usage: Iterable[DecayedUsage]) -> None:
        self.tree = tree
        self._seconds = [[0.0] * len(tree.cell_index) for _ in tree.queues]
        self.by_queue = [0.0] * len(tree.queues)
        for entry in usage:
            queue, cell = tree.index.get(entry.queue), tree.cell_index.get((entry.flavor, entry.resource))
            if queue is not None and cell is not None:
                self._add(queue, cell, entry.resource_seconds)

    def add(self, queue: int, amounts: CellAmounts, seconds: float) -> None:
        """Add amounts used for this many seconds."""
        for cell, amount in amounts:
            self._add(queue, cell, amount * seconds)

    def _add(self, queue: int, cell: int, resource_seconds: float) -> None:
        total = self.tree.subtree_quota[self.tree.root(queue)][cell]
        for q in self.tree.path[queue]:
            self._seconds[q][cell] += resource_seconds
            if total > 0:
                share = self._seconds[q][cell] / (self.tree.queues[q].weight * total)
                self.by_queue[q] = max(self.by_queue[q], share)


CoveredGuarantees: TypeAlias = tuple[int, ...]
"""One number per option: bit `i` is set if the gang is within the guarantee of the `i`-th queue of its path."""


@dataclass(slots=True)
class GuaranteeEligibility:
    """The guarantees that gangs are within, with the usage at this point of the plan."""

    ledger: Ledger
    # by leaf, position on its path and cell: what waiting gangs ahead claim
    _amounts_ahead: dict[int, list[dict[int, int]]] = field(default_factory=dict)
    _leaf_versions: dict[int, int] = field(default_factory=dict)  # by leaf: number of changes of `_amounts_ahead`
    # by leaf: not yet in `_amounts_ahead`, with what is charged for them already
    _not_counted: dict[int, list[tuple[QueueRequest, CellAmounts]]] = field(default_factory=dict)
    _covered: VersionedCache[tuple[QueueRequest, int], CoveredGuarantees] = field(default_factory=VersionedCache)

    def covered(self, request: QueueRequest) -> CoveredGuarantees:
        """The guarantees that the next gang of a leaf is within."""
        if self._not_counted.get(request.queue):
            self._count_waiting(request.queue)
        covered, key = self._covered.at(self.ledger.version), (request, self._leaf_versions.get(request.queue, 0))
        found = covered.get(key)
        if found is None:
            found = covered[key] = self._find(request)
        return found

    def add_waiting(self, request: QueueRequest, charged: CellAmounts = ()) -> None:
        """The next gang of its leaf has to wait: it is ahead of the others. `charged` is in the usage already."""
        self._not_counted.setdefault(request.queue, []).append((request, charged))

    def _count_waiting(self, leaf: int) -> None:
        path = self.ledger.usage_later.tree.path[leaf]
        ahead = self._amounts_ahead.setdefault(leaf, [{} for _ in path])
        more = False
        for request, charged in self._not_counted.pop(leaf):
            if not any(request.coverable_guarantees):
                continue  # it must borrow in any case: it uses no guarantee
            more, known = True, dict(charged)
            for position, claimed in enumerate(ahead):
                for coverable, amounts in zip(request.coverable_guarantees, request.min_quota, strict=True):
                    if coverable >> position & 1:
                        for cell, amount in amounts:
                            claimed[cell] = claimed.get(cell, 0) + max(0, amount - known.get(cell, 0))
                        break
        if more:
            self._leaf_versions[leaf] = self._leaf_versions.get(leaf, 0) + 1

    def _find(self, request: QueueRequest) -> CoveredGuarantees:
        usage = self.ledger.usage_later
        tree, below, width = usage.tree, usage.subtree_usage, usage.cell_count
        ahead = self._amounts_ahead.get(request.queue)
        found = []
        for coverable, amounts in zip(request.coverable_guarantees, request.min_quota, strict=True):
            covered = 0
            for position, queue in enumerate(tree.path[request.queue] if coverable else ()):
                guaranteed, claimed = tree.guaranteed[queue], None if ahead is None else ahead[position]
                for cell, amount in amounts:
                    if claimed:
                        amount += claimed.get(cell, 0)
                    if below[queue * width + cell] + amount > guaranteed[cell]:
                        break
                else:
                    covered |= 1 << position
            found.append(covered)
        return tuple(found)
