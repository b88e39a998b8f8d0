"""Why each gang waits, with the numbers that explain it, and when it is expected to start.

Start times are estimated as far as running gangs declare a maximum run time. A gang with a reservation starts at its
time. For the others demand is added up in queue order: that much of its flavor (on nodes that are up) and of its
queue's quota has to become free for all gangs ahead and for the gang itself. That ignores where capacity becomes free,
and that gangs ahead end too: it is an estimate. None if a gang without a maximum run time has to end first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from muster.model import Wait
from muster.quota import QuotaUsage
from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.borrowing_heads import next_turn
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.feasibility import (
    NoFitCache,
    RequestMessages,
    UnschedulableReason,
    find_shortage,
    format_amount,
    format_number,
    shortage_message,
)
from muster.scheduling.gang_requests import FlavorOption, GangRequest, QueueRequest
from muster.scheduling.holders import Holders
from muster.scheduling.ledger import Ledger, QuotaForecast
from muster.scheduling.nominations import ActiveNomination
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.releases import ExpectedReleases
from muster.text import format_duration

_MAX_BORROWERS = 3  # that a message names


@dataclass(frozen=True, slots=True)
class WaitMessages:
    """Messages that depend on the capacity and quota left at the end of a plan. Parts shared by gangs are cached."""

    requests: RequestMessages
    usage_now: QuotaUsage
    free_now: FreeCapacity
    holders: Holders
    _left_cache: dict[tuple[int, int, bool], str] = field(default_factory=dict)
    _shortages: dict[FlavorOption, tuple[str, str]] = field(default_factory=dict)
    _held: dict[FlavorOption, str] = field(default_factory=dict)
    _no_fit_cache: NoFitCache = field(default_factory=dict)

    def quota_message(self, request: QueueRequest, option: int) -> str:
        """`needs 16 GPUs of h200; queue research has 8 of 24 left and may borrow 4`."""
        cell = self._quota_cell(request, option)
        if cell is None:
            return self.requests.needs(request.gang_request, option)
        return f"{self.requests.needs_of(request, option, cell)}; {self.quota_left(request.queue, cell)}"

    def _quota_cell(self, request: QueueRequest, option: int, flavor: str | None = None) -> int | None:
        """The cell of a resource that exceeds quota. If none does: of a resource of `flavor`, or of the main resource.
        None if no quota applies."""
        amounts = request.min_quota[option]
        if len(amounts) == 1:  # fast path: nearly every pending gang
            return amounts[0][0]
        if not amounts:
            return None
        names = self.requests.tree.cell_names
        short = [c for c, amount in amounts if amount > self.usage_now.available(request.queue, c)]
        of_flavor = [c for c, _ in amounts if names[c][0] == flavor]
        return self.requests.main_cell(request.gang_request, short or of_flavor or [c for c, _ in amounts])

    def quota_left(self, queue: int, cell: int, *, with_unit: bool = False) -> str:
        """`queue research has 8 of 24 left and may borrow 4`: within its guarantee, and beyond it. Adds the queue's
        limit if that prevents more borrowing, and who has borrowed of its guarantee."""
        key = (queue, cell, with_unit)
        if key not in self._left_cache:
            tree = self.requests.tree
            name = tree.cell_names[cell][1]
            guaranteed = tree.guaranteed[queue][cell]
            avail = max(0, self.usage_now.available(queue, cell))
            own = min(
                avail, max(0, guaranteed - self.usage_now.subtree_usage[queue * self.usage_now.cell_count + cell])
            )
            of = format_amount(name, guaranteed) if with_unit else format_number(name, guaranteed)
            has = f"{format_number(name, own)} of {of} left"
            left = f"queue {tree.queues[queue].name} has {has} and may borrow {format_number(name, avail - own)}"
            used = self.usage_now.subtree_usage[queue * self.usage_now.cell_count + cell]
            lent = self._borrowers_clause(queue, cell) if own < guaranteed - used else ""
            self._left_cache[key] = left + self._limit_clause(queue, cell) + lent
        return self._left_cache[key]

    def _borrowers_clause(self, queue: int, cell: int) -> str:
        """`; queue b has borrowed 16, queue c 4`: the queues beside it, or beside the nearest one above, that use more
        than their guarantee. "" if none does."""
        tree, usage = self.requests.tree, self.usage_now
        for below in tree.path[queue][:-1]:
            beside = (other for other in tree.children[tree.parent[below]] if other != below)
            found = ((usage.subtree_usage[o * usage.cell_count + cell] - tree.guaranteed[o][cell], o) for o in beside)
            largest = sorted((-amount, tree.queues[other].name) for amount, other in found if amount > 0)
            if not largest:
                continue
            resource = tree.cell_names[cell][1]
            named = [
                f"queue {name} {{}}{format_number(resource, -amount)}" for amount, name in largest[:_MAX_BORROWERS]
            ]
            more = f" and {len(largest) - len(named)} more queues" if len(largest) > len(named) else ""
            return "; " + ", ".join([named[0].format("has borrowed "), *(one.format("") for one in named[1:])]) + more
        return ""

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

    def capacity_message(self, request: QueueRequest, option: int, *, reserved: bool, unmanaged: bool) -> str:
        """What is needed, what the nodes lack, and the quota. `reserved`: a reservation blocks the gang; `unmanaged`:
        pods that are not Muster's do so by themselves."""
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
        if unmanaged:
            text += "; pods not managed by Muster block it even without other gangs"
        needs, cell = self.requests.needs(request.gang_request, option), self._quota_cell(request, option, flavor)
        if cell is None:
            return f"{needs}; {text}"
        resource = self.requests.tree.cell_names[cell][1]
        is_other = resource != self.requests.main_resource(request.gang_request)
        return f"{needs}; {text}; {self.quota_left(request.queue, cell, with_unit=is_other)}"

    def held(self, request: QueueRequest, option: int) -> str:
        """Who holds capacity of the flavors that would become free by itself; "" if none does."""
        chosen = request.gang_request.options[option]
        known = self._held.get(chosen)  # hot path
        if known is None:
            main = self.requests.main_resource(request.gang_request)
            known = self._held[chosen] = self.holders.clause(chosen.flavors, main)
        return known

    def partly_nominated(self, request: QueueRequest, why: UnschedulableReason, active: ActiveNomination) -> str:
        """`needs 24 GPUs of h200; 2 of 3 pods have nominated capacity on 2 nodes, and wait for capacity for the
        other`."""
        pods = sum(part.replicas for part in active.nomination.placement)
        total = sum(request.gang_request.min_sizes)
        nodes = f"{active.node_count} node{'s' * (active.node_count != 1)}"
        other = "the other" if total - pods == 1 else f"the other {total - pods}"
        needs = self.requests.needs(request.gang_request, why.option)
        return f"{needs}; capacity on {nodes} is nominated for {pods} of {total} pods; no capacity for {other}"


def wait_decisions(
    cache: PlannerCache,
    ledger: Ledger,
    backfill: BackfillReservations,
    unschedulable: Mapping[str, UnschedulableReason],
    start_times: Mapping[str, float],
    heads: Mapping[str, float],
) -> list[Wait]:
    """A Wait for every unschedulable gang, in the order of the snapshot. An unchanged Wait is the same object as in the
    last plan (`cache.waits`). `heads`: since when those wait that are the first that have to borrow."""
    waits: list[Wait] = []
    wait_messages = WaitMessages(cache.messages, ledger.usage_now, ledger.free_now, Holders(cache))
    partly = {active.gang.uid: active for active in cache.nominations if active.is_usable_part}
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
                if backfill.is_passed(request):
                    cached = messages[key] = f"{cached}{_PASSED}"
            text = cached
            if uid in partly and code in ("InsufficientResources", "TopologyUnsatisfiable"):
                text = wait_messages.partly_nominated(request, why, partly[uid])
            if uid in heads:
                delay_s = cache.tree.reservation_delay_s[request.queue]
                wait_s = next_turn(heads[uid], delay_s, cache.snapshot.now) - heads[uid]
                text = _message_of_head(text, backfill, uid, wait_s)
        ends_clock = gang.borrowing_head_since is not None and uid not in heads
        wait = last_waits.get(uid)
        if (
            wait is None
            or wait.message != text
            or wait.position != position
            or wait.estimated_start != start_at
            or wait.reason != code
            or wait.borrowing_head_since != heads.get(uid)
            or wait.ends_clock != ends_clock
        ):
            wait = Wait(uid, code, text, position, start_at, heads.get(uid), ends_clock)
        waits.append(wait)
    return waits


_PASSED = "; jobs within their guarantee go first"


def _message_of_head(text: str, backfill: BackfillReservations, uid: str, wait_s: float) -> str:
    """`...; jobs within their guarantee go first until it has been the first job that has to borrow for 6h00m`."""
    if backfill.is_ahead(uid):
        return f"{text.removesuffix(_PASSED)}; what becomes free is reserved for it, before jobs within their guarantee"
    if not text.endswith(_PASSED) or math.isinf(wait_s):
        return text
    return f"{text} until it has been the first job that has to borrow for {format_duration(wait_s)}"


def _message(messages: WaitMessages, request: QueueRequest, why: UnschedulableReason, *, unmanaged: bool) -> str:
    held = messages.held(request, why.option)
    if why.reason == "QuotaExceeded":
        return messages.quota_message(request, why.option) + held
    reserved = why.reason == "BlockedByReservation"
    return messages.capacity_message(request, why.option, reserved=reserved, unmanaged=unmanaged) + held


ESTIMATED_REASONS = frozenset(
    {"InsufficientResources", "TopologyUnsatisfiable", "BlockedByReservation", "QuotaExceeded", "BlockedByQueueHead"}
)
"""Reasons of gangs that start once others have ended."""


def estimate_starts(
    cache: PlannerCache,
    ledger: Ledger,
    backfill: BackfillReservations,
    unschedulable: Mapping[str, UnschedulableReason],
    heads: Mapping[str, float],
) -> dict[str, float]:
    """Estimated start times by uid. A gang that gangs within their guarantee pass has none, unless it is one of the
    `heads`: then not before all others are bound by its reservation.

    `unschedulable` is in the order of the decisions: the queue order, except that gangs with the request of an earlier
    rejected gang are rejected a little sooner, which moves estimates and nothing else.
    """
    now = cache.snapshot.now
    waiting = [
        (uid, cache.pending[uid].request, why)
        for uid, why in unschedulable.items()
        if why.reason in ESTIMATED_REASONS and uid not in cache.infeasible  # it is not known when unmanaged pods end
    ]
    if not waiting:
        return {}
    releases = backfill.releases()
    by_capacity = _times_by_capacity(cache, ledger, releases, [(request, why.option) for _, request, why in waiting])
    quota = _QuotaTimes(
        ledger.quota_forecast, [] if ledger.quota_forecast is None else ledger.quota_forecast.times.tolist()
    )
    found: dict[str, float] = {}
    released_at: float | None = None
    for (uid, request, why), at in zip(waiting, by_capacity, strict=True):
        reserved_at = backfill.start_times.get(uid)
        if reserved_at is None:
            if backfill.is_passed(request):
                if uid not in heads:
                    continue
                at = max(at, next_turn(heads[uid], cache.tree.reservation_delay_s[request.queue], now))
            if why.reason == "QuotaExceeded":
                at = max(at, quota.time_of(request, why.option))
            if at > now and not math.isinf(at):
                found[uid] = at
        elif reserved_at == -math.inf:
            released_at = _releasing_done_at(cache, now) if released_at is None else released_at
            found[uid] = max(released_at, now)
        elif not math.isinf(reserved_at):
            found[uid] = max(reserved_at, now)
    return found


def _releasing_done_at(cache: PlannerCache, now: float) -> float:
    """When terminating gangs will have ended."""
    stopping = (gang_usage.running for gang_usage in cache.running.values() if not gang_usage.is_admitted)
    since = ((now if one.stopping_since is None else one.stopping_since, one.gang.grace_s) for one in stopping)
    return max((start + grace_s for start, grace_s in since), default=now)


def _times_by_capacity(
    cache: PlannerCache, ledger: Ledger, releases: ExpectedReleases, waiting: list[tuple[QueueRequest, int]]
) -> Iterable[float]:
    """For each gang in order, when enough of its flavors will be free for it and all gangs ahead."""
    at = np.full(len(waiting), -math.inf)
    order = np.argsort(releases.positions)
    times = np.concatenate([[-math.inf], releases.release_at[order], [math.inf]])
    columns = len(cache.table.columns)
    numbers: dict[FlavorOption, tuple[int, QueueRequest, int]] = {}
    number_of = [
        numbers.setdefault(request.gang_request.options[option], (len(numbers), request, option))[0]
        for request, option in waiting
    ]
    for name, span in cache.table.flavors.items():
        needed = np.array(
            [
                cache.request_cache.min_usage(request.gang_request, option, name)
                for _, request, option in numbers.values()
            ]
        )
        if not needed.any():
            continue
        need = needed[number_of]
        usable = np.zeros(len(cache.table.nodes), dtype=np.bool_)
        usable[span.start : span.stop] = cache.table.schedulable[span.start : span.stop]
        freed = releases.usage_by_gang(usable)
        free = np.maximum(0, ledger.free_later.free[usable]).sum(axis=0)
        total = np.cumsum(np.concatenate([free[None, :], freed[order]]), axis=0)
        ahead = np.cumsum(need, axis=0)
        for column in range(columns):
            wants = need[:, column] > 0
            first = np.searchsorted(total[:, column], ahead[wants, column])
            at[wants] = np.maximum(at[wants], times[first])
    return at.tolist()


@dataclass(slots=True)
class _QuotaTimes:
    """When quota allows one gang of a leaf after the other. The first gang of a leaf has a claim, which is charged
    already."""

    forecast: QuotaForecast | None
    times: list[float]  # of the forecast
    _available_from: dict[tuple[int, int], list[int]] = field(
        default_factory=dict
    )  # by (queue, cell): what is available from each time point on
    _amounts_ahead: dict[tuple[int, int], int] = field(default_factory=dict)

    def time_of(self, request: QueueRequest, option: int) -> float:
        """When there is quota for this gang too. Call in queue order."""
        if self.forecast is None:
            return math.inf
        times, at = self.times, -math.inf
        for cell, amount in request.min_quota[option]:
            key = (request.queue, cell)
            if key not in self._available_from:
                avail = self.forecast.available(request.queue, cell)
                self._available_from[key] = np.minimum.accumulate(avail[::-1])[::-1].tolist()
            ahead = self._amounts_ahead[key] = self._amounts_ahead.get(key, 0) + amount
            first = bisect_left(self._available_from[key], ahead)
            at = max(at, times[first] if first < len(times) else math.inf)
        return at
