"""Whether a gang fits now: in which flavor option, at which size, on which nodes; and why not. And what elastic gangs
below their full size may grow into.

Most gangs need no trial: quota or capacity is short, and no gang may be preempted for them. For all requests at once
that check is a few array operations (`QuickReject`). Its result holds while the ledger does not change; afterwards it
is computed again only after some gangs in a row were rejected, since where one gang starts the next may start as well.

Growing costs the gang a checkpoint and a restart, so it happens at most every ten minutes, and never into capacity that
would be reclaimed at once: a flavor that a gang within its guarantee waits for, or that a gang of the same leaf waits
for. Reserved capacity is not used either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from muster.model import GROWTH_REST_S, Gang, WaitReason
from muster.quota import CellAmounts
from muster.scheduling.backfill import BackfillReservations, ReservationIndexes
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.feasibility import UnschedulableReason, unschedulable_reason
from muster.scheduling.fit import FlavorAssignment, GangAssignment, fit, fits
from muster.scheduling.gang_requests import FlavorOption, QueueRequest, RequestArrays, largest_feasible
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray
from muster.scheduling.nominations import placed_pods
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.preemption_candidates import PreemptionCandidates
from muster.scheduling.releases import ExpectedRelease, GangUsage, latest_release
from muster.scheduling.versioned_cache import VersionedCache

MISSES_BEFORE_BATCH = 8
"""This many gangs in a row are checked one by one before the batch check."""


@dataclass(slots=True)
class QuickReject:
    """The check, computed in a batch when that is faster."""

    requests: RequestArrays  # all requests with a single option
    ledger: Ledger
    candidates: PreemptionCandidates
    _reasons: VersionedCache[QueueRequest, UnschedulableReason | None] = field(default_factory=VersionedCache)
    _misses: int = 0
    _last_miss: tuple[Gang, int] | None = (
        None  # the gang and the ledger's version: called twice in a row, it counts once
    )

    def reason(self, gang: Gang, request: QueueRequest) -> UnschedulableReason | None:
        """Why a gang waits, if it needs no trial."""
        version = self.ledger.version
        reasons = self._reasons.at(version)
        if not reasons and self.requests.index:
            if self._misses < MISSES_BEFORE_BATCH:
                if self._last_miss is None or self._last_miss[0] is not gang or self._last_miss[1] != version:
                    self._last_miss = gang, version
                    self._misses += 1
                return None
            reasons.update(zip(self.requests.index, self._compute(), strict=True))
        why = reasons.get(request)
        if why is None or self.candidates.lower_priority(request.queue, gang.priority):
            return None
        return why

    def on_capacity_changed(self) -> None:
        """A gang was admitted, or victims were evicted for one."""
        self._misses = 0

    def _compute(self) -> list[UnschedulableReason | None]:
        """The reason of each request, if no gang of its leaf can be preempted."""
        arrays = self.requests
        avail = self.ledger.usage_now.available_table()
        requested = arrays.amounts > 0
        over_quota = np.any(requested & (arrays.amounts > avail[arrays.queue]), axis=1)
        full = _without_capacity(arrays, self.ledger.free_now)[arrays.option]
        domain = _needs_domain(arrays)[arrays.option]
        which = np.select([~(over_quota | full) | self._may_reclaim(), over_quota, domain], [0, 1, 2], 3)
        reasons = (
            None,
            unschedulable_reason("QuotaExceeded"),
            unschedulable_reason("TopologyUnsatisfiable"),
            unschedulable_reason("InsufficientResources"),
        )
        return [reasons[i] for i in which.tolist()]

    def _may_reclaim(self) -> BoolArray:
        """Requests within a guarantee of their path, while some queue is above its own."""
        arrays, usage = self.requests, self.ledger.usage_later
        tree = usage.tree
        above = self.candidates.queues_above_guarantee(
            frozenset(range(len(tree.cell_index))), usage, self.ledger.version
        )
        has_reclaimable = np.array([queue in above for queue in range(len(tree.queues))] + [False])
        slack = tree.guaranteed_table - usage.table()
        queue, may_reclaim = arrays.queue, np.zeros(len(arrays.queue), dtype=np.bool_)
        parent = np.array(tree.parent, dtype=np.int64)
        while (inner := parent[queue] >= 0).any():
            within = np.all((arrays.amounts == 0) | (arrays.amounts <= slack[queue]), axis=1)
            may_reclaim |= within & inner & has_reclaimable[parent[queue]]
            queue = np.where(inner, parent[queue], queue)
        return may_reclaim


def _without_capacity(requests: RequestArrays, free_now: FreeCapacity) -> BoolArray:
    """Options whose minimum does not fit now."""
    table = free_now.table
    pairs = zip(requests.options, requests.sizes, strict=True)
    full: BoolArray = np.array([not fits(table, option, sizes, free_now) for option, sizes in pairs], dtype=np.bool_)
    return full


def _needs_domain(requests: RequestArrays) -> BoolArray:
    """Options with a required domain."""
    inside = [any(group.required is not None for group in option.groups) for option in requests.options]
    return np.array(inside, dtype=np.bool_)


@dataclass(slots=True)
class FlavorAssigner:
    """Tries the options of gangs, with what all trials of one plan share."""

    ledger: Ledger
    backfill: BackfillReservations
    now: float
    grows_elastic: bool  # of the policy: whether gangs grow into borrowed quota at the end of the plan
    _full_options: VersionedCache[tuple[FlavorOption, ReservationIndexes], WaitReason] = field(
        default_factory=VersionedCache
    )
    _fits_later: VersionedCache[tuple[FlavorOption, ReservationIndexes], bool] = field(default_factory=VersionedCache)

    def assign(self, gang: Gang, request: QueueRequest) -> FlavorAssignment | UnschedulableReason:
        """The first option that quota, capacity and reservations allow, at the largest size there; or why none does."""
        binding = self.backfill.binding(latest_release(gang, self.now))
        first_reason: UnschedulableReason | None = None
        for index, option in enumerate(request.gang_request.options):
            reservations = self.backfill.relevant(option, binding)
            reason = self._known_reason(request, index, reservations)
            if reason is None and not self._certainly_full(request, option, reservations):
                found = self.largest(gang, request, index, self._max_extra_pods(request, index))
                if found is not None:
                    return found
            first_reason = first_reason or reason or self._find_reason(request, index, reservations)
        assert first_reason is not None
        return first_reason

    def largest(self, gang: Gang, request: QueueRequest, index: int, limit: int) -> FlavorAssignment | None:
        """The largest size of a gang in one option, with up to `limit` extra pods; None if the minimum does not fit."""
        option = request.gang_request.options[index]
        binding = self.backfill.binding(latest_release(gang, self.now))
        capacity = self.backfill.free_capacity(self.backfill.relevant(option, binding))

        def try_size(extra_pods: int) -> FlavorAssignment | None:
            sizes = request.gang_request.sizes(extra_pods)
            amounts = request.quota_at(index, sizes)
            if not self.ledger.usage_now.fits(request.queue, amounts):
                return None
            nodes = fit(self.ledger.free_now.table, option, sizes, capacity)
            if nodes is None:
                return None
            release = ExpectedRelease.of(gang, self.now, self.now, nodes.node_usage, request.queue, amounts)
            return FlavorAssignment(index, extra_pods, nodes, amounts) if self.backfill.fits_quota(release) else None

        found = largest_feasible(limit, try_size)
        return None if found is None else found[1]

    def fits_after_releases(self, gang: Gang, request: QueueRequest) -> bool:
        """Whether the minimum fits in some option once terminating gangs have ended."""
        binding = self.backfill.binding(latest_release(gang, self.now))
        known = self._fits_later.at(self.ledger.version)
        for option, amounts in zip(request.gang_request.options, request.min_quota, strict=True):
            if self.ledger.usage_later.fits(request.queue, amounts):
                key = (option, self.backfill.relevant(option, binding))
                if key not in known:
                    capacity = self.backfill.free_capacity(key[1], later=True)
                    known[key] = fits(self.ledger.free_now.table, option, request.gang_request.min_sizes, capacity)
                if known[key]:
                    return True
        return False

    def _known_reason(
        self, request: QueueRequest, index: int, reservations: ReservationIndexes
    ) -> UnschedulableReason | None:
        """Why the minimum does not fit one option, if known: an option that was full is still full unless capacity was
        freed since."""
        if not self.ledger.usage_now.fits(request.queue, request.min_quota[index]):
            return unschedulable_reason("QuotaExceeded", index)
        full_options = self._full_options.at(self.ledger.times_freed)
        code = full_options.get((request.gang_request.options[index], reservations))
        return None if code is None else unschedulable_reason(code, index)

    def _certainly_full(self, request: QueueRequest, option: FlavorOption, reservations: ReservationIndexes) -> bool:
        """Whether the counts of its only pod class show that there is no capacity, without a full fit."""
        if len(option.groups) > 1 or len(option.groups[0].pods) > 1:
            return False
        capacity = self.backfill.free_capacity(reservations)
        return not fits(self.ledger.free_now.table, option, request.gang_request.min_sizes, capacity)

    def _find_reason(self, request: QueueRequest, index: int, reservations: ReservationIndexes) -> UnschedulableReason:
        """Why the minimum does not fit one option that quota allows."""
        option, sizes = request.gang_request.options[index], request.gang_request.min_sizes
        table = self.ledger.free_now.table
        if fits(table, option, sizes, self.backfill.free_capacity(reservations)):
            # The quota that is reserved depends on the gang's queue, so it is not cached for the option.
            return unschedulable_reason("BlockedByReservation", index)
        code: WaitReason = "BlockedByReservation"
        if not reservations or not fits(table, option, sizes, self.ledger.free_now):
            inside = any(group.required is not None for group in option.groups)
            code = "TopologyUnsatisfiable" if inside else "InsufficientResources"
        self._full_options.at(self.ledger.times_freed)[option, reservations] = code
        return unschedulable_reason(code, index)

    def _max_extra_pods(self, request: QueueRequest, index: int) -> int:
        """Pods above the minimum that fit within the gang's guarantee. Borrowed extra pods come at the end of the plan:
        taken earlier, gangs later in the order would reclaim them."""
        gang_request = request.gang_request
        if not gang_request.max_extra_pods or not self.grows_elastic:
            return gang_request.max_extra_pods
        usage, queue = self.ledger.usage_now, request.queue
        found = largest_feasible(
            gang_request.max_extra_pods,
            lambda extra_pods: (
                usage.within_guarantee(queue, request.quota_at(index, gang_request.sizes(extra_pods))) or None
            ),
        )
        return 0 if found is None else found[0]


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """A running gang at a new size."""

    gang_usage: GangUsage
    request: QueueRequest
    option: int
    assignment: GangAssignment  # placement of the whole gang, usage of the new pods only
    added: ExpectedRelease  # what it takes in addition


@dataclass(slots=True)
class ContendedFlavors:
    """Flavors that waiting gangs could reclaim from an elastic gang; computed at the first use."""

    cache: PlannerCache
    ledger: Ledger
    unschedulable: Mapping[str, UnschedulableReason]
    _flavors: set[str] | None = None  # that gangs within a guarantee wait for
    _flavors_by_queue: set[tuple[int, str]] = field(
        default_factory=set
    )  # (queue, flavor) that gangs of that leaf wait for

    def is_contended(self, queue: int, flavors: Iterable[str]) -> bool:
        """Whether a gang of this queue must not take more of these flavors than it is guaranteed."""
        if self._flavors is None:
            self._flavors = self._find()
        return any(flavor in self._flavors or (queue, flavor) in self._flavors_by_queue for flavor in flavors)

    def _find(self) -> set[str]:
        flavors: set[str] = set()
        codes = ("InsufficientResources", "TopologyUnsatisfiable", "BlockedByReservation")
        for request in {
            self.cache.pending[uid].request for uid, why in self.unschedulable.items() if why.reason in codes
        }:
            for option, amounts in zip(request.gang_request.options, request.min_quota, strict=True):
                self._flavors_by_queue.update((request.queue, flavor) for flavor in option.flavors)
                path = self.cache.tree.path[request.queue]
                if any(self.ledger.usage_later.within_guarantee(q, amounts) for q in path[:-1]):
                    flavors.update(option.flavors)
            if len(flavors) == len(self.cache.table.flavors):
                break
        return flavors


def find_growths(
    cache: PlannerCache,
    ledger: Ledger,
    backfill: BackfillReservations,
    contended: ContendedFlavors,
    may_grow: Callable[[str], bool],
) -> Iterator[Growth]:
    """Growths one by one; the caller allocates each before it requests the next. `may_grow`: whether the gang of a uid
    may be grown."""
    candidates = [
        gang_usage
        for uid, gang_usage in cache.running.items()
        if gang_usage.elastic
        and gang_usage.is_admitted
        and may_grow(uid)
        and uid not in cache.pending
        and gang_usage.queue >= 0
        and cache.snapshot.now - _changed_at(gang_usage) >= GROWTH_REST_S
        and not contended.is_contended(gang_usage.queue, {part.flavor for part in gang_usage.running.placement})
    ]
    for gang_usage in sorted(candidates, key=lambda gang_usage: (_changed_at(gang_usage), gang_usage.running.gang.uid)):
        growth = _find_growth(cache, ledger, backfill, gang_usage)
        if growth is not None:
            yield growth


def _changed_at(gang_usage: GangUsage) -> float:
    resized_at = gang_usage.running.resized_at
    return gang_usage.running.admitted_at if resized_at is None else max(resized_at, gang_usage.running.admitted_at)


def _find_growth(
    cache: PlannerCache, ledger: Ledger, backfill: BackfillReservations, gang_usage: GangUsage
) -> Growth | None:
    gang = gang_usage.running.gang
    request = cache.request_cache.request(gang)
    gang_request = request.gang_request
    present = placed_pods(cache.table, gang, gang_usage.running.placement)
    now = tuple(present[role].pods if role in present else 0 for role in range(len(gang.roles)))
    if request.rejection is not None or sum(now) != sum(part.replicas for part in gang_usage.running.placement):
        return None  # its queue is inactive, or one of its nodes is deleted
    option = next(gang_request.options_of(gang_usage.running.placement), None)
    extra_pods = sum(now) - sum(gang_request.min_sizes)
    if option is None or extra_pods >= gang_request.max_extra_pods or gang_request.sizes(max(0, extra_pods)) != now:
        return None
    later = gang_usage.release
    assert later is not None
    reservations = backfill.relevant(gang_request.options[option], backfill.binding(later.release_at))

    def grown(more: int) -> Growth | None:
        sizes = gang_request.sizes(extra_pods + more)
        amounts = _difference(request.quota_at(option, sizes), gang_usage.amounts)
        if not ledger.usage_now.fits(gang_usage.queue, amounts):
            return None
        view = backfill.free_capacity(reservations)
        assignment = fit(cache.table, gang_request.options[option], sizes, view, present)
        if assignment is None:
            return None
        release = replace(later, node_usage=assignment.node_usage, amounts=amounts)
        return Growth(gang_usage, request, option, assignment, release) if backfill.fits_quota(release) else None

    found = largest_feasible(gang_request.max_extra_pods - extra_pods, grown)
    return None if found is None or found[0] == 0 else found[1]


def _difference(new: CellAmounts, old: CellAmounts) -> CellAmounts:
    before = dict(old)
    return tuple((cell, amount - before.get(cell, 0)) for cell, amount in new)
