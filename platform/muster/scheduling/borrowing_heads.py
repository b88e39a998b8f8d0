"""The first gang of each root and flavor that has to borrow and waits: when it comes before all others.

Gangs within their guarantee pass gangs that have to borrow, without end if they keep coming. So the first of these, its
head, has a clock: `borrowing_head_since`, which is persisted. After the delay of its queue it comes before all other
gangs, and its reservation binds them all: for one delay at most. If it has not started by then, because a gang that it
waits for goes on, the others go first again for one delay, and so on in turns. For one delay after its start it is not
reclaimed: those that it passed would do so at once.

Only a gang that no gang of a higher priority in its own leaf precedes is a head, and only where the delay is not 0. The
one that is due first has the place, of several that are due that of the queue with the smallest share. A gang that
another of its leaf precedes loses its clock once another has its place. Only the head has a clock, and those that were
the head and will be due later than it; there is no new head until the last one may be reclaimed. So a team that submits
many large gangs, early or at once, takes capacity from the guarantees of others for one of them at a time, and they
have their guarantees back for at least the delay between two of them. Only gangs of queues with different delays may
follow each other at once, one of each delay.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from muster.model import Gang
from muster.quota import QueueTree
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.fit import fits
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.order import FairShares
from muster.scheduling.planner_cache import LeafQueue, PendingGang, PlannerCache
from muster.scheduling.releases import GangUsage

_Slots: TypeAlias = set[tuple[int, str]]
"""(root, flavor): each has one head."""

_BLOCKED = frozenset({"QuotaExceeded", "InsufficientResources", "TopologyUnsatisfiable", "BlockedByReservation"})


def due_at(tree: QueueTree, queue: int, gang: Gang) -> float | None:
    """When a gang comes before all others; None if it has no clock, infinite if never."""
    if gang.borrowing_head_since is None or queue < 0:
        return None
    return gang.borrowing_head_since + tree.reservation_delay_s[queue]


def first_since(tree: QueueTree, queue: int, gang: Gang, now: float) -> float | None:
    """Since when a gang comes before all others in its present turn; None if it does not now."""
    due = due_at(tree, queue, gang)
    if due is None or due > now:
        return None
    delay_s = tree.reservation_delay_s[queue]
    passed = _whole_delays(due, delay_s, now)
    return None if passed % 2 else due + passed * delay_s


def next_turn(since: float, delay_s: float, now: float) -> float:
    """When the present turn of a head with this clock began, or its next one begins."""
    if since + delay_s > now:
        return since + delay_s
    return since + delay_s * (_whole_delays(since, delay_s, now) // 2 * 2 + 1)


def _whole_delays(start: float, delay_s: float, now: float) -> int:
    count = int((now - start) // delay_s)
    return count + (start + (count + 1) * delay_s <= now)  # rounding: `now` may be the end of a delay


def protected_until(tree: QueueTree, usage: GangUsage) -> float | None:
    """Until when a running gang is not reclaimed, if it started because it was due."""
    gang, admitted_at = usage.running.gang, usage.running.admitted_at
    due = due_at(tree, usage.queue, gang)
    return None if due is None or admitted_at < due else admitted_at + tree.reservation_delay_s[usage.queue]


def is_protected(tree: QueueTree, usage: GangUsage, now: float) -> bool:
    """Whether a running gang may not be reclaimed yet."""
    until = protected_until(tree, usage)
    return until is not None and now < until


@dataclass(slots=True)
class BorrowingHeads:
    """The heads of one plan."""

    cache: PlannerCache
    shares: FairShares

    def due(self) -> list[PendingGang]:
        """Heads that come before all other gangs, of the queue with the smallest share first. Not while a gang of a
        higher priority waits in the same leaf, or another head of its slot is protected."""
        tree, now = self.cache.tree, self.cache.snapshot.now
        found = []
        for queue, leaf in self.cache.leaves.items():
            for waiting in _with_clock(leaf):
                is_first = first_since(tree, queue, waiting.gang, now) is not None
                feasible = waiting.gang.uid not in self.cache.infeasible
                if is_first and feasible and not self._is_outranked(leaf, waiting, self.cache.pending):
                    found.append(waiting)
        taken = self._protected_slots() if found else set()
        heads: list[PendingGang] = []
        for waiting in sorted(found, key=self._order):
            slots = self._slots(waiting.request)
            if taken.isdisjoint(slots):
                heads.append(waiting)
                taken |= slots
        return heads

    def choose(self, unschedulable: Mapping[str, UnschedulableReason]) -> dict[str, float]:
        """Since when each head waits, by uid: those that have a clock, and new ones of slots without."""
        cache, now = self.cache, self.cache.snapshot.now
        heads: dict[str, float] = {}
        candidates: list[PendingGang] = []
        outranked: list[PendingGang] = []
        for queue, leaf in cache.leaves.items():
            if cache.tree.reservation_delay_s[queue] == float("inf"):
                continue
            for waiting in _with_clock(leaf):
                assert waiting.gang.borrowing_head_since is not None
                heads[waiting.gang.uid] = waiting.gang.borrowing_head_since
                if self._is_outranked(leaf, waiting, unschedulable):
                    outranked.append(waiting)
                elif waiting.gang.uid in unschedulable:
                    candidates.append(waiting)
            candidates += self._first_blocked(leaf, unschedulable)
        taken = self._protected_slots()
        for waiting in sorted(candidates, key=self._due_order):
            slots = self._slots(waiting.request)
            if taken.isdisjoint(slots) and self._fits_available_nodes(waiting.request):
                heads.setdefault(waiting.gang.uid, now)
                taken |= slots
        for waiting in outranked:
            if not taken.isdisjoint(self._slots(waiting.request)):
                del heads[waiting.gang.uid]
        return heads

    def next_change(self, heads: Mapping[str, float]) -> float | None:
        """When a turn of a head begins or ends, or one that runs may be reclaimed."""
        tree, now, times = self.cache.tree, self.cache.snapshot.now, list[float]()
        for uid, since in heads.items():
            delay_s = tree.reservation_delay_s[self.cache.pending[uid].request.queue]
            due = since + delay_s
            times.append(due if due > now else due + (_whole_delays(due, delay_s, now) + 1) * delay_s)
        for uid in self.cache.running_heads:
            if (until := protected_until(tree, self.cache.running[uid])) is not None:
                times.append(until)
        return min((at for at in times if now < at < float("inf")), default=None)

    def _first_blocked(
        self, leaf: LeafQueue, unschedulable: Mapping[str, UnschedulableReason]
    ) -> Iterator[PendingGang]:
        """The first gang of a leaf, if it waits for others to end and has to borrow."""
        for waiting in leaf.borrowers:
            reason = unschedulable.get(waiting.gang.uid)
            if reason is not None and reason.reason in _BLOCKED and waiting.gang.uid not in self.cache.infeasible:
                if not self._is_outranked(leaf, waiting, unschedulable):
                    yield waiting
                return

    def _is_outranked(self, leaf: LeafQueue, waiting: PendingGang, waits: Container[str]) -> bool:
        """Whether one of the gangs that wait has a higher priority in the same leaf."""
        infeasible = self.cache.infeasible
        ahead = (other for other in leaf.pending if other.gang.uid in waits and other.gang.uid not in infeasible)
        return next(ahead, waiting).gang.priority > waiting.gang.priority

    def _protected_slots(self) -> _Slots:
        tree, now, slots = self.cache.tree, self.cache.snapshot.now, set[tuple[int, str]]()
        for uid in self.cache.running_heads:
            usage = self.cache.running[uid]
            if is_protected(tree, usage, now):
                slots.update((tree.root(usage.queue), part.flavor) for part in usage.running.placement)
        return slots

    def _fits_available_nodes(self, request: QueueRequest) -> bool:
        """Whether it fits once all gangs have ended, as nodes are now: no other gang waits for one that does not."""
        sizes, options = request.gang_request.min_sizes, request.gang_request.options
        return any(fits(self.cache.table, option, sizes, self.cache.available) for option in options)

    def _slots(self, request: QueueRequest) -> _Slots:
        root = self.cache.tree.root(request.queue)
        return {(root, flavor) for option in request.gang_request.options for flavor in option.flavors}

    def _due_order(self, waiting: PendingGang) -> tuple[object, ...]:
        """Those that are due first, as in `_order`; then by when they are due: a new one after its delay."""
        tree, now, queue = self.cache.tree, self.cache.snapshot.now, waiting.request.queue
        due = due_at(tree, queue, waiting.gang) or now + tree.reservation_delay_s[queue]
        return (max(due, now), *self._order(waiting))

    def _order(self, waiting: PendingGang) -> tuple[object, ...]:
        """Smallest share first, at each level of the tree; then as in the leaf."""
        path = self.cache.tree.path[waiting.request.queue]
        return (*((self.shares.by_queue[q], self.cache.tree.queues[q].name) for q in reversed(path)), waiting.order)


def _with_clock(leaf: LeafQueue) -> Iterator[PendingGang]:
    return (waiting for waiting in leaf.borrowers if waiting.gang.borrowing_head_since is not None)
