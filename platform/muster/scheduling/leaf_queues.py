"""Pending gangs of each leaf queue, in order. The order depends on the pending gangs only, so it is carried over from
plan to plan; only leaves with changes are sorted again."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from muster.model import Gang
from muster.scheduling.gang_requests import QueueRequest

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
