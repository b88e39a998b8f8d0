"""One sentence for every gang that waits, with the numbers that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from muster.model import Wait
from muster.quota import QuotaUsage
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.gang_requests import FlavorOption, GangRequest, QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.request_messages import RequestMessages, find_shortage, shortage_message
from muster.scheduling.role_shortage import NoFitCache
from muster.scheduling.units import format_number


@dataclass(frozen=True, slots=True)
class WaitMessages:
    """Sentences about the state of things at the end of a plan. What several of them share is worded once."""

    requests: RequestMessages
    usage_now: QuotaUsage
    free_now: FreeCapacity
    _left_cache: dict[tuple[int, int], str] = field(default_factory=dict)
    _shortages: dict[FlavorOption, tuple[str, str]] = field(default_factory=dict)
    _no_fit_cache: NoFitCache = field(default_factory=dict)

    def quota_message(self, request: QueueRequest, option: int, flavor: str | None = None) -> str:
        """`needs 16 GPUs of h200; queue research has 8 of 24 left and may borrow 4`, of the scarcest resource.

        Where none is short it is about `flavor`, if that is given.
        """
        least = request.min_quota[option]
        if len(least) == 1:  # asked for nearly every gang that waits
            cell = least[0][0]
            left = self._left_cache.get((request.queue, cell)) or self.quota_left(request.queue, cell)
            return f"{self.requests.needs_of(request, option, cell)}; {left}"
        if not least:
            return self.requests.needs(request.gang_request, option)
        names = self.requests.tree.cell_names
        short = [c for c, amount in least if amount > self.usage_now.available(request.queue, c)]
        asked = [c for c, _ in least if names[c][0] == flavor]
        cell = self.requests.main_cell(request.gang_request, short or asked or [c for c, _ in least])
        return f"{self.requests.needs_of(request, option, cell)}; {self.quota_left(request.queue, cell)}"

    def quota_left(self, queue: int, cell: int) -> str:
        """`queue research has 8 of 24 left and may borrow 4`: of its guarantee, and beyond it; and its limit, where it
        is that which keeps it from borrowing more."""
        key = (queue, cell)
        if key not in self._left_cache:
            tree = self.requests.tree
            name = tree.cell_names[cell][1]
            guaranteed = tree.guaranteed[queue][cell]
            avail = max(0, self.usage_now.available(queue, cell))
            own = min(
                avail, max(0, guaranteed - self.usage_now.subtree_usage[queue * self.usage_now.cell_count + cell])
            )
            has = f"{format_number(name, own)} of {format_number(name, guaranteed)} left"
            left = f"queue {tree.queues[queue].name} has {has} and may borrow {format_number(name, avail - own)}"
            self._left_cache[key] = left + self._limit_clause(queue, cell)
        return self._left_cache[key]

    def _limit_clause(self, queue: int, cell: int) -> str:
        """`: its limit of 4 is in use`, where there would be more to have without it."""
        tree, charged = self.requests.tree, self.usage_now
        at = queue * charged.cell_count + cell
        limit, below, above = tree.limit[queue][cell], charged.subtree_usage[at], tree.parent[queue]
        spare = (tree.subtree_quota if above < 0 else tree.local_quota)[queue][cell] - charged.usage[at]
        if above >= 0:
            spare = max(0, spare) + charged.available(above, cell)
        if spare <= limit - below or charged.available(queue, cell) < limit - below:
            return ""
        name = tree.cell_names[cell][1]
        bound = f"its limit of {format_number(name, limit)}"
        return f": {bound} is in use" if below >= limit else f": {format_number(name, below)} of {bound} in use"

    def shortage_of(self, shape: GangRequest, option: int) -> tuple[str, str]:
        """What the first role lacks that finds no room, and its flavor; "" when each of them does."""
        way = shape.options[option]
        known = self._shortages.get(way)
        if known is None:
            blocked = find_shortage(self.free_now, shape, option, self._no_fit_cache, empty=False)
            known = (way.flavors[0], "") if blocked is None else (blocked.pod.flavor, shortage_message(shape, blocked))
            self._shortages[way] = known
        return known

    def capacity_message(self, request: QueueRequest, option: int, *, reserved: bool) -> str:
        """Quota first, if there is one, then what the nodes have left."""
        flavor, text = self.shortage_of(request.gang_request, option)
        if reserved:
            text = f"{text}; what is free is promised" if text else "there is room, promised"
            text += " to a gang that comes first"
        elif not text:
            several = sum(len(group.roles) for group in request.gang_request.options[option].groups) > 1
            text = "room for each of its roles, but not for all of them" if several else "room came free just now"
        return f"{self.quota_message(request, option, flavor)}; {text}"


def wait_decisions(
    cache: PlannerCache, ledger: Ledger, unschedulable: Mapping[str, UnschedulableReason], expected: Mapping[str, float]
) -> Iterator[Wait]:
    """What to tell every gang that waits, in the order of the snapshot. Who is told what was told before, of the memo,
    is told it by the same object."""
    explainer = WaitMessages(cache.messages, ledger.usage_now, ledger.free_now)
    sentences: dict[tuple[QueueRequest, str, int], str] = {}
    positions: dict[str, int] = {}
    for leaf in cache.leaves.values():
        waiting = [w.gang.uid for w in leaf.pending if w.gang.uid in unschedulable]
        positions.update(zip(waiting, count(1), strict=False))
    requests, told = cache.pending, cache.last_waits
    for gang in cache.snapshot.pending:
        uid = gang.uid
        refusal = unschedulable.get(uid)
        if refusal is None:
            continue
        code, text, position, at = refusal.reason, refusal.message, positions.get(uid), expected.get(uid)
        if not text:
            request = requests[uid].request
            key = (request, code, refusal.option)
            known = sentences.get(key)
            if known is None:
                foreign = cache.feasibility.is_blocked_by_unmanaged(request)
                known = sentences[key] = _message(explainer, request, refusal, unmanaged=foreign)
            text = known
        wait = told.get(uid)
        if (
            wait is None
            or wait.message != text
            or wait.position != position
            or wait.estimated_start != at
            or wait.reason != code
        ):
            wait = told[uid] = Wait(uid, code, text, position, at)
        yield wait


def _message(messages: WaitMessages, request: QueueRequest, why: UnschedulableReason, *, unmanaged: bool) -> str:
    if why.reason == "QuotaExceeded":
        return messages.quota_message(request, why.option)
    text = messages.capacity_message(request, why.option, reserved=why.reason == "BlockedByReservation")
    return (
        f"{text}; even without other gangs, pods that are not Muster's take room that it needs" if unmanaged else text
    )
