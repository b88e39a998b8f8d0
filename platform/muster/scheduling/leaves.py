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
from muster.scheduling.shape import Request

Order: TypeAlias = tuple[int, float, str]
"""Priority high to low, first submit time, uid: the order inside a leaf."""

FEW = 16
"""So many who come are put in their places one by one; more are sorted."""


class Waiting(NamedTuple):
    """A gang that waits, what it asks for, and its place in the order of its leaf."""

    gang: Gang
    request: Request
    order: Order

    @classmethod
    def of(cls, gang: Gang, request: Request) -> Waiting:
        """A gang that waits."""
        return cls(gang, request, (-gang.priority, gang.submitted_at, gang.uid))


IN_LEAF = attrgetter("order")


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Everyone who waits in one leaf, the next one first, and the same in two parts: `borrowers` ask for more than the
    leaf's whole guarantee in every option, the `entitled` do not. Never changed."""

    everyone: list[Waiting]
    entitled: list[Waiting]
    borrowers: list[Waiting]

    def changed(self, gone: Collection[str], come: Iterable[Waiting]) -> Leaf:
        """Without those whose uids are gone, and with those who have come."""
        parts: tuple[list[Waiting], list[Waiting]] = ([], [])
        for waiting in come:
            parts[any(option & 1 for option in waiting.request.could)].append(waiting)
        return Leaf(
            _changed(self.everyone, gone, [*parts[0], *parts[1]]),
            _changed(self.entitled, gone, parts[1]),
            _changed(self.borrowers, gone, parts[0]),
        )


NOBODY = Leaf([], [], [])


def leaves_changed(leaves: Mapping[int, Leaf], gone: Iterable[Waiting], come: Iterable[Waiting]) -> dict[int, Leaf]:
    """The leaves with somebody in them, by queue, once some are gone and others have come. Gangs whose queue does not
    exist are in none."""
    changes: dict[int, tuple[set[str], list[Waiting]]] = {}
    for waiting in gone:
        changes.setdefault(waiting.request.queue, (set(), []))[0].add(waiting.gang.uid)
    for waiting in come:
        changes.setdefault(waiting.request.queue, (set(), []))[1].append(waiting)
    changes.pop(-1, None)
    after = dict(leaves)
    for queue, (uids, new) in changes.items():
        leaf = leaves.get(queue, NOBODY).changed(uids, new)
        if leaf.everyone:
            after[queue] = leaf
        else:
            after.pop(queue, None)
    return after


def _changed(entries: list[Waiting], gone: Collection[str], come: list[Waiting]) -> list[Waiting]:
    if not gone and not come:
        return entries
    kept = [waiting for waiting in entries if waiting.gang.uid not in gone] if gone else entries.copy()
    if len(come) > FEW:
        kept += come
        kept.sort(key=IN_LEAF)
        return kept
    for waiting in come:
        insort(kept, waiting, key=IN_LEAF)
    return kept
