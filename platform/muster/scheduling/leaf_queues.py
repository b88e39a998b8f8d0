"""Who waits in each leaf, in the order inside it.

That depends on nothing but who waits there, so it is carried over from plan to plan: only a leaf in which somebody came
or went is put in order again.
"""

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
"""So many who come are put in their places one by one; more are sorted."""


class PendingGang(NamedTuple):
    """A gang that waits, what it asks for, and its place in the order of its leaf."""

    gang: Gang
    request: QueueRequest
    order: LeafOrder

    @classmethod
    def of(cls, gang: Gang, request: QueueRequest) -> PendingGang:
        """A gang that waits."""
        return cls(gang, request, (-gang.priority, gang.submitted_at, gang.uid))


BY_LEAF_ORDER = attrgetter("order")


@dataclass(frozen=True, slots=True, eq=False)
class LeafQueue:
    """Everyone who waits in one leaf, the next one first, and the same in two parts: `borrowers` ask for more than the
    leaf's whole guarantee in every option, the `entitled` do not. Never changed."""

    pending: list[PendingGang]
    entitled: list[PendingGang]
    borrowers: list[PendingGang]

    def updated(self, removed: Collection[str], added: Iterable[PendingGang]) -> LeafQueue:
        """Without those whose uids are gone, and with those who have come."""
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
    """The leaves with somebody in them, by queue, once some are gone and others have come. Gangs whose queue does not
    exist are in none."""
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
    kept = [waiting for waiting in entries if waiting.gang.uid not in removed] if removed else entries.copy()
    if len(added) > INSERT_LIMIT:
        kept += added
        kept.sort(key=BY_LEAF_ORDER)
        return kept
    for waiting in added:
        insort(kept, waiting, key=BY_LEAF_ORDER)
    return kept
