"""One planning cycle in numbered steps: from a snapshot to decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from muster.model import Decision, Gang, Snapshot, Wait, WaitReason
from muster.quota import CellAmounts
from muster.scheduling.backfill import BackfillReservations, ReservationIndexes
from muster.scheduling.decisions import Decisions
from muster.scheduling.feasibility import UnschedulableReason, unschedulable_reason
from muster.scheduling.fit import GangAssignment, fit, fits
from muster.scheduling.gang_requests import FlavorOption, QueueRequest, largest_feasible
from muster.scheduling.grow import ContendedFlavors, find_growths
from muster.scheduling.leaf_queues import GuaranteeEligibility, LeafOrder, PendingGang
from muster.scheduling.ledger import Ledger
from muster.scheduling.order import MUSTER, FairShares, Policy, QueueOrder, queue_order
from muster.scheduling.planner_cache import PlannerCache, update
from muster.scheduling.preemption import PreemptionResult, Preemptor
from muster.scheduling.preemption_candidates import PreemptionCandidates
from muster.scheduling.quick_reject import QuickReject
from muster.scheduling.releases import ExpectedRelease, latest_release, tiebreak_of
from muster.scheduling.versioned_cache import VersionedCache
from muster.scheduling.waits import estimate_starts, wait_decisions


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The decisions and the cache for the next plan.

    Decisions are in the order to apply them: nominate capacity, then evict or shrink victims, then admit, then grow,
    then explain why the other gangs wait.
    """

    decisions: tuple[Decision, ...]
    cache: PlannerCache


def plan(snapshot: Snapshot, previous: PlannerCache | None = None, policy: Policy = MUSTER) -> PlanResult:
    """Decide about every pending gang. Pure: with the cache of any earlier plan the decisions are the same."""
    cache = update(snapshot, previous)  # 1. update the cache
    cycle = _Cycle.of(cache, policy)
    cycle.reserve_nominated_capacity()  # 2. nominated capacity is not free
    cycle.reject_infeasible()  # 3. gangs that can never start as things are
    cycle.admit_nominated()  # 4. nominated gangs first
    cycle.admit_in_order()  # 5. the other gangs in order: admit, preempt, reserve, or wait
    cycle.grow_elastic_gangs()  # 6. into the capacity that is left
    waits = cycle.explain_waits()  # 7. why the other gangs wait
    decisions = (*cycle.decisions.in_order(), *waits)
    return PlanResult(decisions, replace(cache, waits={wait.gang_uid: wait for wait in waits}))


@dataclass(slots=True)
class _Cycle:
    """The state of one plan."""

    cache: PlannerCache
    policy: Policy
    ledger: Ledger
    backfill: BackfillReservations
    decisions: Decisions
    preemptor: Preemptor
    guarantees: GuaranteeEligibility
    quick_reject: QuickReject
    _full_options: VersionedCache[tuple[FlavorOption, ReservationIndexes], WaitReason] = field(
        default_factory=VersionedCache
    )
    _fits_later: VersionedCache[tuple[FlavorOption, ReservationIndexes], bool] = field(default_factory=VersionedCache)
    _without_victims: VersionedCache[tuple[QueueRequest, int], None] = field(default_factory=VersionedCache)

    @classmethod
    def of(cls, cache: PlannerCache, policy: Policy) -> _Cycle:
        """A plan without any decision."""
        ledger = Ledger(
            cache.free_now.fork(), cache.free_later.fork(), cache.usage_now.fork(), cache.usage_later.fork()
        )
        backfill = BackfillReservations(ledger, cache.releases)
        victims, guarantees = PreemptionCandidates(cache), GuaranteeEligibility(ledger)
        decisions = Decisions(cache, ledger, backfill, victims)
        preemptor = Preemptor(cache, ledger, backfill, victims, guarantees)
        quick_reject = QuickReject(cache.request_cache.as_arrays(), ledger, victims)
        return cls(cache, policy, ledger, backfill, decisions, preemptor, guarantees, quick_reject)

    # -- 2

    def reserve_nominated_capacity(self) -> None:
        """Charge every active nomination, so that no other gang gets its capacity."""
        for active in self.cache.nominations:
            self.decisions.reserve_nomination(active)

    # -- 3

    def reject_infeasible(self) -> None:
        """Reject gangs that could not start in an empty cluster, and gangs whose old pods are still terminating."""
        cache, unschedulable = self.cache, self.decisions.unschedulable
        unschedulable.update(cache.infeasible)
        for uid in cache.pending.keys() & cache.running.keys():
            unschedulable.setdefault(
                uid,
                UnschedulableReason(
                    "WaitingForPreemption", message="pods of its previous attempt are still terminating"
                ),
            )

    # -- 4

    def admit_nominated(self) -> None:
        """Admit each nominated gang, or let it wait for its victims; if its capacity is lost, schedule it first."""
        cache, ledger, decisions = self.cache, self.ledger, self.decisions
        ready = [
            active
            for uid, active in decisions.candidates.nominations.items()
            if uid in cache.pending and uid not in decisions.unschedulable
        ]
        for active in sorted(ready, key=lambda active: cache.pending[active.gang.uid].order):
            if active.gang.uid not in decisions.candidates.nominations:
                continue  # its nomination was taken by a gang before it in this loop
            gang, request = active.gang, active.request
            message = active.waiting_message(cache.running)
            if not active.fits_while_reserved(ledger.free_now, ledger.usage_now) and active.fits_while_reserved(
                ledger.free_later, ledger.usage_later
            ):
                decisions.unschedulable[gang.uid] = UnschedulableReason("WaitingForPreemption", message=message)
                continue  # the usual case: the nomination stays as it is
            decisions.end_nomination(active)
            if active.fits(ledger.free_now, ledger.usage_now):
                decisions.admit_nominated(active)
            elif (completed := active.completed(ledger.free_now, ledger.usage_now)) is not None:
                option, assignment, amounts = completed
                decisions.admit(gang, request, option, 0, assignment, amounts)
            elif active.fits(ledger.free_later, ledger.usage_later) or active.completed(
                ledger.free_later, ledger.usage_later
            ):
                decisions.reserve_nomination(active)
                decisions.unschedulable[gang.uid] = UnschedulableReason("WaitingForPreemption", message=message)
            else:
                self._schedule_one(gang, request)
                if gang.uid in decisions.unschedulable and not decisions.is_nominated(gang.uid):
                    # The nomination is in the status until it expires, so its capacity must stay charged.
                    decisions.reserve_nomination(active)

    # -- 5

    def admit_in_order(self) -> None:
        """Schedule every other gang, in queue order."""
        decisions = self.decisions
        decided = decisions.unschedulable.keys() | decisions.admissions.keys()
        shares = FairShares(self.cache.tree, self.cache.snapshot.usage)
        turns = queue_order(self.cache.leaves, decided, self.guarantees, shares, self.policy, self._skip_rejected)
        behind: UnschedulableReason | None = None  # set once the first gang is blocked, if the policy has no backfill
        for gang, request, _ in turns:
            if behind is not None:
                decisions.unschedulable[gang.uid] = behind
            elif not self._schedule_one(gang, request, turns) and self.policy.backfill == "none":
                behind = UnschedulableReason(
                    "BlockedByQueueHead",
                    message=f"waits behind {gang.name}, which is ahead in the queue order and cannot start",
                )
        for start in decisions.withdrawn:  # the loop may add more
            if start.gang.uid not in decisions.admissions:
                del decisions.unschedulable[start.gang.uid]
                self._schedule_one(start.gang, start.request)

    def _skip_rejected(self, pending: list[PendingGang], limit: LeafOrder | None) -> bool:
        """Reject and remove gangs at the end of a list, up to `limit`, that cannot be admitted, preempt nothing and get
        no reservation. Return whether the list ends at a gang that has to be scheduled."""
        if self.policy.backfill != "easy":
            return True
        quick_reject, backfill, unschedulable = self.quick_reject, self.backfill, self.decisions.unschedulable
        while pending and (limit is None or pending[-1].order <= limit):
            gang, request, _ = pending[-1]
            why = quick_reject.reason(gang, request)
            if why is None or backfill.may_reserve(request, why.reason):
                return True
            unschedulable[gang.uid] = why
            self.guarantees.add_waiting(request)
            pending.pop()
        return False

    def _schedule_one(self, gang: Gang, request: QueueRequest, order: QueueOrder | None = None) -> bool:
        """Admit a gang, or preempt for it, or reserve for it. Return whether it is admitted, or may be in a later
        turn."""
        outcome = self.quick_reject.reason(gang, request)
        if outcome is None:
            until = latest_release(gang, self.cache.snapshot.now)
            binding = self.backfill.binding(until)
            found = self._try_options(gang, request, until, binding)
            if not isinstance(found, UnschedulableReason):
                option, extra_pods, place, amounts = found
                if order is not None and order.postpone(gang, request, option):
                    return True
                self.decisions.admit(gang, request, option, extra_pods, place, amounts)
                self.quick_reject.on_capacity_changed()
                if order is not None:
                    order.on_admitted(request.queue, amounts)
                return True
            result = self._preempt(gang, request, binding) if self.policy.preempts else None
            if result is not None:
                if order is not None and order.postpone(gang, request, result.option):
                    return True
                self.quick_reject.on_capacity_changed()
                victims = self.decisions.withdraw(gang, result)
                if not victims:
                    return self._schedule_one(gang, request, order)
                self.decisions.nominate(gang, request, result, victims)
                return False
            outcome = found
        self.decisions.unschedulable[gang.uid] = outcome
        self.guarantees.add_waiting(request)
        if self.policy.backfill == "easy" and self.backfill.may_reserve(request, outcome.reason):
            self.backfill.reserve_or_claim(gang.uid, request, outcome.reason)
        return False

    def _try_options(
        self, gang: Gang, request: QueueRequest, release_at: float, binding: ReservationIndexes
    ) -> tuple[int, int, GangAssignment, CellAmounts] | UnschedulableReason:
        """The first option that quota, capacity and reservations allow, at the largest size there; or why none does."""
        first: UnschedulableReason | None = None
        for index in range(len(request.gang_request.options)):
            bound = self.backfill.relevant(request.gang_request.options[index], binding)
            why = self._known_reason(request, index, bound)
            if why is None and not self._certainly_full(request, index, bound):
                attempt = partial(self._try_size, gang, request, index, release_at, bound)
                found = largest_feasible(self._max_extra_pods(request, index), attempt)
                if found is not None:
                    return index, found[0], *found[1]
            first = first or why or self._find_reason(request, index, bound)
        assert first is not None
        return first

    def _known_reason(self, request: QueueRequest, index: int, bound: ReservationIndexes) -> UnschedulableReason | None:
        """Why the minimum does not fit one option, if known: an option that was full is still full unless capacity was
        freed since."""
        if not self.ledger.usage_now.fits(request.queue, request.min_quota[index]):
            return unschedulable_reason("QuotaExceeded", index)
        full_options = self._full_options.at(self.decisions.times_freed)
        code = full_options.get((request.gang_request.options[index], bound))
        return None if code is None else unschedulable_reason(code, index)

    def _certainly_full(self, request: QueueRequest, index: int, bound: ReservationIndexes) -> bool:
        """Whether the counts of its only pod class show that there is no capacity, without a full fit."""
        option = request.gang_request.options[index]
        alike = len(option.groups) == 1 and len(option.groups[0].pods) == 1
        return alike and not fits(
            self.cache.table, option, request.gang_request.min_sizes, self.backfill.free_capacity(bound)
        )

    def _find_reason(self, request: QueueRequest, index: int, bound: ReservationIndexes) -> UnschedulableReason:
        """Why the minimum does not fit one option that quota allows."""
        option, sizes = request.gang_request.options[index], request.gang_request.min_sizes
        if fits(self.cache.table, option, sizes, self.backfill.free_capacity(bound)):
            return unschedulable_reason(
                "BlockedByReservation", index
            )  # the quota that is reserved depends on the gang's queue, so it is not cached for the option
        code: WaitReason = "BlockedByReservation"
        if not bound or not fits(self.cache.table, option, sizes, self.ledger.free_now):
            code = (
                "TopologyUnsatisfiable"
                if any(group.required is not None for group in option.groups)
                else "InsufficientResources"
            )
        self._full_options.at(self.decisions.times_freed)[option, bound] = code
        return unschedulable_reason(code, index)

    def _try_size(
        self,
        gang: Gang,
        request: QueueRequest,
        index: int,
        release_at: float,
        bound: ReservationIndexes,
        extra_pods: int,
    ) -> tuple[GangAssignment, CellAmounts] | None:
        option, sizes = request.gang_request.options[index], request.gang_request.sizes(extra_pods)
        amounts = request.quota_at(index, sizes)
        if not self.ledger.usage_now.fits(request.queue, amounts):
            return None
        place = fit(self.cache.table, option, sizes, self.backfill.free_capacity(bound))
        if place is None:
            return None
        now, tie = self.cache.snapshot.now, tiebreak_of(gang.uid)
        taken = ExpectedRelease(gang.uid, release_at, now, tie, place.node_usage, request.queue, amounts)
        return (place, amounts) if self.backfill.fits_quota(taken) else None

    def _max_extra_pods(self, request: QueueRequest, index: int) -> int:
        """Pods above the minimum that fit within the gang's guarantee. Borrowed extra pods come in step 6: taken
        earlier, gangs later in the order would reclaim them."""
        gang_request = request.gang_request
        if not gang_request.max_extra_pods or not self.policy.grows_elastic:
            return gang_request.max_extra_pods
        charges, queue = self.ledger.usage_now, request.queue
        found = largest_feasible(
            gang_request.max_extra_pods,
            lambda extra_pods: (
                charges.within_guarantee(queue, request.quota_at(index, gang_request.sizes(extra_pods))) or None
            ),
        )
        return 0 if found is None else found[0]

    def _preempt(self, gang: Gang, request: QueueRequest, binding: ReservationIndexes) -> PreemptionResult | None:
        """Victims to evict, if the gang may preempt and starts once they have terminated."""
        key, without_victims = (request, gang.priority), self._without_victims.at(self.decisions.times_freed)
        if key in without_victims or not self.preemptor.may_preempt(gang, request):
            return None
        result = None if self._fits_after_releases(request, binding) else self.preemptor.find(gang, request)
        if result is None:
            without_victims[key] = None
        return result

    def _fits_after_releases(self, request: QueueRequest, binding: ReservationIndexes) -> bool:
        """Whether the minimum fits in some option once terminating gangs are gone: then there are no further
        victims."""
        known = self._fits_later.at(self.ledger.version)
        for option, least in zip(request.gang_request.options, request.min_quota, strict=True):
            if self.ledger.usage_later.fits(request.queue, least):
                bound = self.backfill.relevant(option, binding)
                if (option, bound) not in known:
                    view = self.backfill.free_capacity(bound, later=True)
                    known[option, bound] = fits(self.cache.table, option, request.gang_request.min_sizes, view)
                if known[option, bound]:
                    return True
        return False

    # -- 6

    def grow_elastic_gangs(self) -> None:
        """Grow elastic gangs into capacity that no waiting gang has a better right to: first those admitted in this
        plan, then running ones."""
        if not self.policy.grows_elastic:
            return
        wanted = ContendedFlavors(self.cache, self.ledger, self.decisions.unschedulable)
        for start in [
            start
            for start in self.decisions.admissions.values()
            if start.extra_pods < start.request.gang_request.max_extra_pods
        ]:
            queue, flavors = start.request.queue, start.request.gang_request.options[start.option].flavors
            if not wanted.is_contended(queue, flavors):
                self.ledger.deallocate(start.release)
                option, binding = (
                    start.request.gang_request.options[start.option],
                    self.backfill.binding(start.release.release_at),
                )
                bound = self.backfill.relevant(option, binding)
                attempt = partial(
                    self._try_size, start.gang, start.request, start.option, start.release.release_at, bound
                )
                found = largest_feasible(start.request.gang_request.max_extra_pods, attempt)
                if found is not None and found[0] > start.extra_pods:
                    self.decisions.admit_at_size(start, found[0], *found[1])
                else:
                    self.ledger.allocate(start.release)
        for growth in find_growths(
            self.cache, self.ledger, self.backfill, wanted, self.decisions.candidates.preempting
        ):
            self.decisions.grow(growth)

    # -- 7

    def explain_waits(self) -> list[Wait]:
        """Reason, message, position and estimated start of every gang that waits."""
        unschedulable = self.decisions.unschedulable
        start_times = estimate_starts(self.cache, self.ledger, self.backfill, unschedulable)
        return wait_decisions(self.cache, self.ledger, unschedulable, start_times)
