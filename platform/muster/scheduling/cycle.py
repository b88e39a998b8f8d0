"""One planning cycle in numbered steps: from a snapshot to decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from muster.model import Decision, Gang, Snapshot, Wait
from muster.quota import CellAmounts
from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.borrowing_heads import BorrowingHeads, first_since
from muster.scheduling.decisions import Decisions, PlannedAdmission, PlannedNomination
from muster.scheduling.eviction_limits import exempt_until
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.fit import FlavorAssignment
from muster.scheduling.flavor_assigner import ContendedFlavors, FlavorAssigner, QuickReject, find_growths
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.guaranteed_demand import GuaranteedDemand
from muster.scheduling.ledger import Ledger
from muster.scheduling.nominations import ActiveNomination
from muster.scheduling.order import MUSTER, FairShares, GuaranteeEligibility, Policy, QueueOrder, queue_order
from muster.scheduling.planner_cache import LeafOrder, PendingGang, PlannerCache, update
from muster.scheduling.preemption import PreemptionResult, Preemptor
from muster.scheduling.preemption_candidates import PreemptionCandidates, PreemptionReason, Victim
from muster.scheduling.waits import estimate_starts, wait_decisions


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The decisions and the cache for the next plan.

    Decisions are in the order to apply them: nominate capacity, then evict or shrink victims, then admit, then grow,
    then explain why the other gangs wait.
    """

    decisions: tuple[Decision, ...]
    cache: PlannerCache
    changes_at: float | None = None  # when a plan of the same objects would differ by time alone, as far as is known


def plan(snapshot: Snapshot, previous: PlannerCache | None = None, policy: Policy = MUSTER) -> PlanResult:
    """Decide about every pending gang. Pure: with the cache of any earlier plan the decisions are the same."""
    cache = update(snapshot, previous)  # 1. update the cache
    cycle = _Cycle.of(cache, policy)
    cycle.reserve_nominated_capacity()  # 2. nominated capacity is not free
    cycle.reject_infeasible()  # 3. gangs that can never start as things are
    cycle.admit_nominated()  # 4. nominated gangs first
    cycle.admit_due_heads()  # 5. gangs that gangs within their guarantee have passed for long enough
    cycle.admit_in_order()  # 6. the other gangs in order: admit, preempt, reserve, or wait
    cycle.grow_elastic_gangs()  # 7. into the capacity that is left
    heads = cycle.choose_heads()  # 8. the first of each root and flavor that has to borrow
    waits = cycle.explain_waits(heads)  # 9. why the other gangs wait
    decisions = (*cycle.decisions.in_order(), *waits)
    cache = replace(cache, waits={wait.gang_uid: wait for wait in waits})
    changes = (cycle.heads.next_change(heads), _next_preemptible(cache) if waits else None)
    return PlanResult(decisions, cache, min((at for at in changes if at is not None), default=None))


def _next_preemptible(cache: PlannerCache) -> float | None:
    """When the next running gang has had the minimum run time of its queue; None if all have."""
    if not any(cache.tree.min_runtime_s):
        return None
    now, ends = cache.snapshot.now, (exempt_until(cache.tree, usage) for usage in cache.running.values())
    return min((at for at in ends if at > now), default=None)


_EqualKey: TypeAlias = tuple[QueueRequest, int, float | None, float]


def _equal_key(gang: Gang, request: QueueRequest) -> _EqualKey:
    """What makes two gangs equal to the planner, their place in the queue aside."""
    return request, gang.priority, gang.max_runtime_s, gang.grace_s


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
    assigner: FlavorAssigner
    shares: FairShares
    heads: BorrowingHeads
    # Of gangs that wait, by what makes gangs equal: no equal gang behind one of them may pass it.
    _equal_ahead: dict[_EqualKey, UnschedulableReason] = field(default_factory=dict)
    _without_victims: set[tuple[QueueRequest, int]] = field(default_factory=set)

    @classmethod
    def of(cls, cache: PlannerCache, policy: Policy) -> _Cycle:
        """A plan without any decision."""
        ledger = Ledger(
            cache.free_now.fork(), cache.free_later.fork(), cache.usage_now.fork(), cache.usage_later.fork()
        )
        admissions: dict[str, PlannedAdmission] = {}
        demand = GuaranteedDemand(cache, admissions) if policy.order == "fair" else None
        backfill = BackfillReservations(ledger, cache.releases, demand)
        victims, guarantees = PreemptionCandidates(cache), GuaranteeEligibility(ledger)
        decisions = Decisions(cache, ledger, backfill, victims, admissions=admissions)
        preemptor = Preemptor(cache, ledger, backfill, victims, guarantees)
        quick_reject = QuickReject(cache.request_cache.as_arrays(), ledger, victims)
        assigner = FlavorAssigner(ledger, backfill, cache.snapshot.now, policy.grows_elastic)
        shares = FairShares(cache.tree, cache.snapshot.usage)
        return cls(
            cache,
            policy,
            ledger,
            backfill,
            decisions,
            preemptor,
            guarantees,
            quick_reject,
            assigner,
            shares,
            BorrowingHeads(cache, shares),
        )

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
                decisions.admit(gang, request, completed)
            elif active.fits(ledger.free_later, ledger.usage_later) or active.completed(
                ledger.free_later, ledger.usage_later
            ):
                decisions.reserve_nomination(active)
                decisions.unschedulable[gang.uid] = UnschedulableReason("WaitingForPreemption", message=message)
            else:
                self._schedule_one(gang, request, lost=active)

    # -- 5

    def admit_due_heads(self) -> None:
        """Schedule gangs that have to borrow and have waited for the delay of their queue. One that cannot start gets a
        reservation of capacity and quota that binds all others; if that is impossible it waits for its turn."""
        if self.policy.order != "fair":
            return
        decisions, tree, now = self.decisions, self.cache.tree, self.cache.snapshot.now
        for gang, request, _ in self.heads.due():
            first = first_since(tree, request.queue, gang, now)
            if first is None or gang.uid in decisions.unschedulable or gang.uid in decisions.admissions:
                continue
            decisions.put_first(gang.uid)
            found = self.assigner.assign(gang, request)
            if isinstance(found, FlavorAssignment):
                decisions.admit(gang, request, found)
            elif self.backfill.reserve_ahead(gang.uid, request, tree.root(request.queue), first):
                self._reject(gang, request, found)

    # -- 6

    def admit_in_order(self) -> None:
        """Schedule every other gang, in queue order."""
        decisions = self.decisions
        decided = decisions.unschedulable.keys() | decisions.admissions.keys()
        turns = queue_order(self.cache.leaves, decided, self.guarantees, self.shares, self.policy, self._skip_rejected)
        behind: UnschedulableReason | None = None  # set once the first gang is blocked, if the policy has no backfill
        for gang, request, _ in turns:
            if behind is not None:
                decisions.unschedulable[gang.uid] = behind
            elif not self._schedule_one(gang, request, turns) and self.policy.backfill == "none":
                behind = UnschedulableReason(
                    "BlockedByQueueHead",
                    message=f"waits behind {gang.name}, which is ahead in the queue order and cannot start",
                )
        done = 0
        while done < len(decisions.withdrawn):  # the loop may add more
            starts = sorted(decisions.withdrawn[done:], key=lambda start: self.cache.pending[start.gang.uid].order)
            done = len(decisions.withdrawn)
            for start in starts:
                if start.gang.uid not in decisions.admissions:
                    del decisions.unschedulable[start.gang.uid]
                    self._schedule_one(start.gang, start.request)

    def _skip_rejected(self, pending: list[PendingGang], limit: LeafOrder | None) -> bool:
        """Reject and remove gangs at the end of a list, up to `limit`, that cannot be admitted, preempt nothing and get
        no reservation. Return whether the list ends at a gang that has to be scheduled."""
        if self.policy.backfill != "easy":
            return True
        quick_reject, backfill = self.quick_reject, self.backfill
        while pending and (limit is None or pending[-1].order <= limit):
            gang, request, _ = pending[-1]
            why = quick_reject.reason(gang, request)
            if why is None or backfill.may_reserve(request, why.reason):
                return True
            self._reject(gang, request, why)
            pending.pop()
        return False

    def _reject(
        self, gang: Gang, request: QueueRequest, reason: UnschedulableReason, charged: CellAmounts = ()
    ) -> None:
        """The gang waits, ahead of the gangs behind it in its leaf. `charged`: by a nomination that it cannot use."""
        self.decisions.unschedulable[gang.uid] = reason
        self.guarantees.add_waiting(request, charged)
        self._equal_ahead.setdefault(_equal_key(gang, request), reason)

    def _schedule_one(
        self, gang: Gang, request: QueueRequest, order: QueueOrder | None = None, lost: ActiveNomination | None = None
    ) -> bool:
        """Admit a gang, or preempt for it, or reserve for it. Return whether it is admitted, or may be in a later turn.

        `order` is None for a gang that has no equal gang ahead of it: it has `lost` a nomination, which it cannot use,
        or its admission was withdrawn.
        """
        reason = self.quick_reject.reason(gang, request)
        if reason is None and order is not None:
            # Capacity that was freed since an equal gang was rejected is for that gang, in the next plan.
            reason = self._equal_ahead.get(_equal_key(gang, request))
        if reason is None:
            found = self.assigner.assign(gang, request)
            if isinstance(found, FlavorAssignment):
                if order is not None and order.postpone(gang, request, found.option):
                    return True
                self.decisions.admit(gang, request, found)
                self.quick_reject.on_capacity_changed()
                if order is not None:
                    order.on_admitted(request.queue, found.amounts)
                return True
            result = self._preempt(gang, request, order) if self.policy.preempts else None
            if result is not None:
                if order is not None and order.postpone(gang, request, result.option):
                    return True
                self.quick_reject.on_capacity_changed()
                victims = self._withdraw(gang, result)
                if not victims:
                    return self._schedule_one(gang, request, order, lost)
                self.decisions.nominate(gang, request, result, victims)
                return False
            reason = found
        if order is None and lost is None and (behind := self._decided_equal_behind(gang, request)) is not None:
            # Its admission was withdrawn. It takes what an equal gang got, and that one waits in its place.
            self.decisions.hand_over(behind.gang.uid, gang)
            gang, request = behind.gang, behind.request
        self._reject(gang, request, reason, lost.release.amounts if lost is not None else ())
        if self.policy.backfill == "easy" and self.backfill.may_reserve(request, reason.reason):
            self.backfill.reserve_or_claim(gang.uid, request, reason.reason)
        if lost is not None:  # it is in the status until it expires, so its capacity is for its gang only
            self.decisions.reserve_nomination(lost.until(self.backfill.start_times.get(gang.uid)))
        return False

    def _decided_equal_behind(self, gang: Gang, request: QueueRequest) -> PlannedAdmission | PlannedNomination | None:
        """The last of the equal gangs behind a gang that are admitted or nominated in this plan."""
        decisions, pending, key = self.decisions, self.cache.pending, _equal_key(gang, request)
        decided: list[PlannedAdmission | PlannedNomination] = [
            *decisions.admissions.values(), *decisions.nominations.values(),
        ]  # fmt: skip
        equal = [
            one
            for one in decided
            if _equal_key(one.gang, one.request) == key
            and pending[one.gang.uid].order > pending[gang.uid].order
            and not decisions.preceding(one.gang.uid)
        ]
        return max(equal, key=lambda one: pending[one.gang.uid].order, default=None)

    def _withdraw(self, gang: Gang, result: PreemptionResult) -> Sequence[tuple[Victim, PreemptionReason]]:
        """Withdraw the admissions of victims that were to start in this plan; return the other victims."""
        known = len(self.decisions.withdrawn)
        victims = self.decisions.withdraw(gang, result)
        for start in self.decisions.withdrawn[known:]:
            why = self.decisions.unschedulable[start.gang.uid]
            self._equal_ahead.setdefault(_equal_key(start.gang, start.request), why)
        return victims

    def _preempt(self, gang: Gang, request: QueueRequest, order: QueueOrder | None) -> PreemptionResult | None:
        """Victims to evict, if the gang may preempt and starts once they have terminated. A gang of the queue order
        does not preempt if one with its request and priority found no victims."""
        key = request, gang.priority
        if (order is not None and key in self._without_victims) or not self.preemptor.may_preempt(gang, request):
            return None
        result = None
        if not self.assigner.fits_after_releases(gang, request):  # otherwise there are no further victims
            result = self.preemptor.find(gang, request)
        if result is None:
            self._without_victims.add(key)
        return result

    # -- 7

    def grow_elastic_gangs(self) -> None:
        """Grow elastic gangs into capacity that no waiting gang has a better right to: first those admitted in this
        plan, then running ones."""
        if not self.policy.grows_elastic:
            return
        decisions, ledger = self.decisions, self.ledger
        contended = ContendedFlavors(self.cache, ledger, decisions.unschedulable)
        for start in list(decisions.admissions.values()):
            request, limit = start.request, start.request.gang_request.max_extra_pods
            flavors = request.gang_request.options[start.option].flavors
            if start.extra_pods < limit and not contended.is_contended(request.queue, flavors):
                ledger.deallocate(start.release)
                found = self.assigner.largest(start.gang, request, start.option, limit)
                if found is not None and found.extra_pods > start.extra_pods:
                    decisions.change_size(start, found)
                else:
                    ledger.allocate(start.release)
        for growth in find_growths(self.cache, ledger, self.backfill, contended, decisions.candidates.may_grow):
            decisions.grow(growth)

    # -- 8

    def choose_heads(self) -> dict[str, float]:
        """Since when the first gang of each root and flavor that has to borrow waits, by uid."""
        return self.heads.choose(self.decisions.unschedulable) if self.policy.order == "fair" else {}

    # -- 9

    def explain_waits(self, heads: Mapping[str, float]) -> list[Wait]:
        """Reason, message, position and estimated start of every gang that waits."""
        unschedulable = self.decisions.unschedulable
        start_times = estimate_starts(self.cache, self.ledger, self.backfill, unschedulable, heads)
        return wait_decisions(self.cache, self.ledger, self.backfill, unschedulable, start_times, heads)
