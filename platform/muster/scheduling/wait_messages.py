"""The message and reason of every pending gang, with the numbers that explain them."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Messages that depend on the capacity and quota left at the end of a plan. Parts shared by gangs are cached."""

    requests: RequestMessages
    usage_now: QuotaUsage
    free_now: FreeCapacity
    _left_cache: dict[tuple[int, int], str] = field(default_factory=dict)
    _shortages: dict[FlavorOption, tuple[str, str]] = field(default_factory=dict)
    _no_fit_cache: NoFitCache = field(default_factory=dict)

    def quota_message(self, request: QueueRequest, option: int, flavor: str | None = None) -> str:
        """`needs 16 GPUs of h200; queue research has 8 of 24 left and may borrow 4`, for a resource that exceeds quota.

        If none does: for a resource of `flavor`, or for the main resource.
        """
        least = request.min_quota[option]
        if len(least) == 1:  # fast path: nearly every pending gang
            cell = least[0][0]
            left = self._left_cache.get((request.queue, cell)) or self.quota_left(request.queue, cell)
            return f"{self.requests.needs_of(request, option, cell)}; {left}"
        if not least:
            return self.requests.needs(request.gang_request, option)
        names = self.requests.tree.cell_names
        short = [c for c, amount in least if amount > self.usage_now.available(request.queue, c)]
        of_flavor = [c for c, _ in least if names[c][0] == flavor]
        cell = self.requests.main_cell(request.gang_request, short or of_flavor or [c for c, _ in least])
        return f"{self.requests.needs_of(request, option, cell)}; {self.quota_left(request.queue, cell)}"

    def quota_left(self, queue: int, cell: int) -> str:
        """`queue research has 8 of 24 left and may borrow 4`: within its guarantee, and beyond it. Adds the queue's
        limit if that prevents more borrowing."""
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
        """`: its limit of 4 is in use`, if more quota would be available without the limit."""
        tree, usage = self.requests.tree, self.usage_now
        at = queue * usage.cell_count + cell
        limit, below, above = tree.limit[queue][cell], usage.subtree_usage[at], tree.parent[queue]
        spare = (tree.subtree_quota if above < 0 else tree.local_quota)[queue][cell] - usage.usage[at]
        if above >= 0:
            spare = max(0, spare) + usage.available(above, cell)
        if spare <= limit - below or usage.available(queue, cell) < limit - below:
            return ""
        name = tree.cell_names[cell][1]
        bound = f"its limit of {format_number(name, limit)}"
        return f": {bound} is in use" if below >= limit else f": {format_number(name, below)} of {bound} in use"

    def shortage_of(self, gang_request: GangRequest, option: int) -> tuple[str, str]:
        """Flavor and shortage of the first role that does not fit; the shortage is "" if each role fits alone."""
        flavor_option = gang_request.options[option]
        cached = self._shortages.get(flavor_option)
        if cached is None:
            shortage = find_shortage(self.free_now, gang_request, option, self._no_fit_cache, empty=False)
            if shortage is None:
                cached = (flavor_option.flavors[0], "")
            else:
                cached = (shortage.pod.flavor, shortage_message(gang_request, shortage))
            self._shortages[flavor_option] = cached
        return cached

    def capacity_message(self, request: QueueRequest, option: int, *, reserved: bool) -> str:
        """The quota message, then what the nodes lack. `reserved`: a reservation blocks the gang."""
        flavor, text = self.shortage_of(request.gang_request, option)
        if reserved:
            text = f"{text}; the free capacity" if text else "free capacity exists, but"
            text += " is reserved for a gang ahead of it"
        elif not text:
            multiple_roles = sum(len(group.roles) for group in request.gang_request.options[option].groups) > 1
            text = (
                "capacity for each role alone, but not for all roles together"
                if multiple_roles
                else "capacity became free in this scheduling cycle"
            )
        return f"{self.quota_message(request, option, flavor)}; {text}"


def wait_decisions(
    cache: PlannerCache,
    ledger: Ledger,
    unschedulable: Mapping[str, UnschedulableReason],
    start_times: Mapping[str, float],
) -> list[Wait]:
    """A Wait for every unschedulable gang, in the order of the snapshot. An unchanged Wait is the same object as in the
    last plan (`cache.waits`)."""
    waits: list[Wait] = []
    wait_messages = WaitMessages(cache.messages, ledger.usage_now, ledger.free_now)
    messages: dict[tuple[QueueRequest, str, int], str] = {}
    positions: dict[str, int] = {}
    for leaf in cache.leaves.values():
        waiting = [w.gang.uid for w in leaf.pending if w.gang.uid in unschedulable]
        positions.update(zip(waiting, count(1), strict=False))
    last_waits = cache.waits
    for gang in cache.snapshot.pending:
        uid = gang.uid
        why = unschedulable.get(uid)
        if why is None:
            continue
        code, text, position, start_at = why.reason, why.message, positions.get(uid), start_times.get(uid)
        if not text:
            request = cache.pending[uid].request
            key = (request, code, why.option)
            cached = messages.get(key)
            if cached is None:
                unmanaged = cache.feasibility.is_blocked_by_unmanaged(request)
                cached = messages[key] = _message(wait_messages, request, why, unmanaged=unmanaged)
            text = cached
        wait = last_waits.get(uid)
        if (
            wait is None
            or wait.message != text
            or wait.position != position
            or wait.estimated_start != start_at
            or wait.reason != code
        ):
            wait = Wait(uid, code, text, position, start_at)
        waits.append(wait)
    return waits


def _message(messages: WaitMessages, request: QueueRequest, why: UnschedulableReason, *, unmanaged: bool) -> str:
    if why.reason == "QuotaExceeded":
        return messages.quota_message(request, why.option)
    text = messages.capacity_message(request, why.option, reserved=why.reason == "BlockedByReservation")
    return f"{text}; pods not managed by Muster block it even without other gangs" if unmanaged else text
