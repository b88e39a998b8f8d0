"""Pending gangs of each leaf queue in order, and which guarantees they are eligible for.

The order depends on the pending gangs only, so it is carried over from plan to plan; only leaves with changes are
sorted again.

A gang is within the guarantee of a queue on its path if the queue's usage plus the gang's request stay below it. But it
is not eligible for a guarantee that a gang ahead of it in the same leaf waits for and would fit once other gangs of the
leaf have ended: otherwise small gangs, each within what is left of the guarantee, would pass a large one forever, or
reclaim capacity while it waits. A gang ahead that must borrow in any case does not block smaller gangs behind it.
Terminating gangs do not count: others may use their guarantee.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from muster.model import Gang
from muster.quota import CellAmounts
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.versioned_cache import VersionedCache

LeafOrder: TypeAlias = tuple[int, float, str]
"""Priority high to low, first submit time, uid: the order inside a leaf."""

INSERT_LIMIT = 16
"""Up to this many new gangs are inserted one by one; more are sorted."""


class PendingGang(NamedTuple):
    """A pending gang, its request, and its position in the order of its leaf."""

    gang: Gang
    request: QueueRequest
    order: LeafOrder

    @classmethod
    def of(cls, gang: Gang, request: QueueRequest) -> PendingGang:
        """The entry of a pending gang."""
        return cls(gang, request, (-gang.priority, gang.submitted_at, gang.uid))


BY_LEAF_ORDER = attrgetter("order")


@dataclass(frozen=True, slots=True, eq=False)
class LeafQueue:
    """Pending gangs of one leaf, the next one first, and the same in two parts: `borrowers` request more than the
    leaf's whole guarantee in every option, `entitled` do not. Immutable."""

    pending: list[PendingGang]
    entitled: list[PendingGang]
    borrowers: list[PendingGang]

    def updated(self, removed: Collection[str], added: Iterable[PendingGang]) -> LeafQueue:
        """Without the gangs of these uids, and with new ones."""
        parts: tuple[list[PendingGang], list[PendingGang]] = ([], [])
        for waiting in added:
            parts[any(option & 1 for option in waiting.request.coverable_guarantees)].append(waiting)
        return LeafQueue(
            _updated(self.pending, removed, [*parts[0], *parts[1]]),
            _updated(self.entitled, removed, parts[1]),
            _updated(self.borrowers, removed, parts[0]),
        )


EMPTY_LEAF = LeafQueue([], [], [])


def update_leaves(
    leaves: Mapping[int, LeafQueue], removed: Iterable[PendingGang], added: Iterable[PendingGang]
) -> dict[int, LeafQueue]:
    """The leaves that have pending gangs, by queue, after some left and others came. Gangs of queues that do not exist
    are in none."""
    changes: dict[int, tuple[set[str], list[PendingGang]]] = {}
    for waiting in removed:
        changes.setdefault(waiting.request.queue, (set(), []))[0].add(waiting.gang.uid)
    for waiting in added:
        changes.setdefault(waiting.request.queue, (set(), []))[1].append(waiting)
    changes.pop(-1, None)
    after = dict(leaves)
    for queue, (uids, new) in changes.items():
        leaf = leaves.get(queue, EMPTY_LEAF).updated(uids, new)
        if leaf.pending:
            after[queue] = leaf
        else:
            after.pop(queue, None)
    return after


def _updated(entries: list[PendingGang], removed: Collection[str], added: list[PendingGang]) -> list[PendingGang]:
    if not removed and not added:
        return entries
    remaining = [waiting for waiting in entries if waiting.gang.uid not in removed] if removed else entries.copy()
    if len(added) > INSERT_LIMIT:
        remaining += added
        remaining.sort(key=BY_LEAF_ORDER)
        return remaining
    for waiting in added:
        insort(remaining, waiting, key=BY_LEAF_ORDER)
    return remaining


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
