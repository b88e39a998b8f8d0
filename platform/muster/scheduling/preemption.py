"""Finds victims whose eviction or shrinking lets a gang start.

Victims are tried in order: they are added in the ledger until the gang fits, then unnecessary ones are removed. A gang
shrinks by no more than needed, and shrinks instead of being evicted where that is enough. If the search fails because
a borrower was back within its guarantee too soon, victims are tried node by node (`candidate_groups`). If a domain is
required, the one with the cheapest victims is used. Most searches end early: even without all candidates the gang
would not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import BackfillReservations, ReservationIndexes
from muster.scheduling.candidate_groups import (
    CandidateGroup,
    NodeCandidateGroups,
    TargetNode,
    hardest_pod,
    single_groups,
)
from muster.scheduling.capacity import FreeCapacity, max_gain
from muster.scheduling.fit import GangAssignment, fit
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray, IntArray
from muster.scheduling.order import GuaranteeEligibility
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.preemption_candidates import (
    CandidateSet,
    PreemptionCandidates,
    PreemptionReason,
    PreemptionRights,
    Victim,
)
from muster.scheduling.releases import ExpectedRelease, latest_release
from muster.scheduling.versioned_cache import VersionedCache

ChosenVictims: TypeAlias = dict[str, tuple[Victim, PreemptionReason]]
"""Gangs that are evicted or shrunk, each with the reason, by uid."""
_QueueCells: TypeAlias = set[tuple[int, tuple[int, ...]]]
"""Queues, each with cells of which it is at its guarantee."""


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionResult:
    """A placement for one gang once its victims have ended, and the victims, each with the reason."""

    option: int
    assignment: GangAssignment
    victims: tuple[tuple[Victim, PreemptionReason], ...]

    @property
    def cost(self) -> tuple[int, float, int]:
        """Lower is better: highest priority of a victim, lost work, number of victims."""
        highest_priority = max(victim.gang.priority for victim, _ in self.victims)
        return highest_priority, sum(victim.lost_work_s for victim, _ in self.victims), len(self.victims)


@dataclass(slots=True, eq=False)
class PreemptionSearch:
    """The search for one gang in one of its options.

    `start_by` is when it starts at the latest; `reservations` are those of others that it must respect;
    `guarantee_reached` is set when a candidate was no longer allowed after others had been added.
    """

    ledger: Ledger
    backfill: BackfillReservations
    candidates: PreemptionCandidates
    request: QueueRequest
    option: int
    rights: PreemptionRights
    gang: Gang
    start_by: float
    reservations: ReservationIndexes
    guarantee_reached: bool = False

    def find(self, groups: Iterable[CandidateGroup], region: BoolArray) -> PreemptionResult | None:
        """Add one group after the other until the gang fits, then remove victims that are not needed. Changes the
        ledger: the caller's trial undoes it."""
        chosen: ChosenVictims = {}
        exhausted: _QueueCells = set()
        assignment = self._fit()
        for group in groups:
            if assignment is not None:
                break
            if self._try_group(group, region, chosen, exhausted):
                assignment = self._fit()
        if assignment is None:
            return None
        for uid, (victim, reason) in reversed(list(chosen.items())):
            self._unmark_releasing(victim)
            without_victim = self._fit()
            if without_victim is not None:
                assignment = without_victim
                del chosen[uid]
                continue
            smallest = self._smallest_shrink(victim, region)
            if smallest is not None:
                victim, assignment = smallest
                chosen[uid] = victim, reason
            self._mark_releasing(victim)
        return PreemptionResult(self.option, assignment, tuple(chosen.values())) if chosen else None

    def _try_group(
        self, group: CandidateGroup, region: BoolArray, chosen: ChosenVictims, exhausted: _QueueCells
    ) -> bool:
        """Add all of a group or none; return whether any was added. A group that frees no capacity, beside reservations
        of others, is not added. Queues that reach their guarantee are added to `exhausted`."""
        undo: list[tuple[str, tuple[Victim, PreemptionReason] | None]] = []
        pods_before = self._pods_that_fit(group.target)
        for victim in group.members:
            helps = bool(region[victim.freed.node_usage.rows].any())
            if not helps and self.ledger.usage_later.fits(self.request.queue, self.request.min_quota[self.option]):
                continue
            uid, cells = victim.gang.uid, (victim.freed.queue, tuple(cell for cell, _ in victim.freed.amounts))
            before = chosen.get(uid)
            if before is not None and not before[0].remaining:
                continue  # it is a victim already, for another node
            if before is None and cells in exhausted:
                return self._restore(undo, chosen)
            if victim.remaining and victim.gang_usage is not None:
                victim = self.candidates.shrink(victim.gang_usage, region, None) or victim
            undo.append((uid, before))
            self._set_victim(chosen, uid, None)
            reason = self.rights.reason_for(victim)
            if reason is None:
                self.guarantee_reached = True
                if len(undo) == 1:  # a single victim: nothing to restore
                    exhausted.add(cells)
                return self._restore(undo, chosen)
            self._set_victim(chosen, uid, (victim, reason))
        if group.target is not None and self._pods_that_fit(group.target) <= pods_before:
            return self._restore(undo, chosen)
        return bool(undo)

    def _restore(
        self, undo: Sequence[tuple[str, tuple[Victim, PreemptionReason] | None]], chosen: ChosenVictims
    ) -> bool:
        """Undo a group."""
        for uid, before in reversed(undo):
            self._set_victim(chosen, uid, before)
        return False

    def _pods_that_fit(self, target: TargetNode | None) -> int:
        """How many such pods fit the node once the victims so far have ended."""
        if target is None:
            return 0
        view = self.backfill.free_capacity(self.reservations, later=True)
        nothing = np.zeros((1, len(self.ledger.free_later.table.columns)), dtype=np.int64)
        return int(view.node_counts(target.pod, np.array([target.row]), nothing)[0])

    def _set_victim(self, chosen: ChosenVictims, uid: str, now: tuple[Victim, PreemptionReason] | None) -> None:
        """Record what happens to a gang."""
        before = chosen.pop(uid, None)
        if before is not None:
            self._unmark_releasing(before[0])
        if now is not None:
            self._mark_releasing(now[0])
            chosen[uid] = now

    def _smallest_shrink(self, victim: Victim, region: BoolArray) -> tuple[Victim, GangAssignment] | None:
        """The fewest pods that a gang, which is restored now, has to shed. None: the victim stays as it is."""
        if victim.gang_usage is None:
            return None
        largest = self.candidates.shrink(victim.gang_usage, region, None)
        found = self._fits_with(largest) if not victim.remaining else None
        if largest is None or (found is None and not victim.remaining):
            return None
        running = victim.gang_usage.running.placement
        for shed in range(1, sum(p.replicas for p in running) - sum(p.replicas for p in largest.remaining)):
            less = self._fits_with(self.candidates.shrink(victim.gang_usage, region, shed))
            if less is not None:
                return less
        return found

    def _fits_with(self, victim: Victim | None) -> tuple[Victim, GangAssignment] | None:
        """Whether this is enough, for a gang that is restored now."""
        if victim is None:
            return None
        self._mark_releasing(victim)
        assignment = self._fit()
        self._unmark_releasing(victim)
        return None if assignment is None else (victim, assignment)

    def _fit(self) -> GangAssignment | None:
        """Where the gang would be placed without the victims so far, beside reservations of others."""
        request, option = self.request, self.request.gang_request.options[self.option]
        amounts = request.min_quota[self.option]
        if not self.ledger.usage_later.fits(request.queue, amounts):
            return None
        view = self.backfill.free_capacity(self.reservations, later=True)
        assignment = fit(self.ledger.free_later.table, option, request.gang_request.min_sizes, view)
        if assignment is None:
            return None
        now = self.candidates.cache.snapshot.now
        release = ExpectedRelease.of(self.gang, self.start_by, now, assignment.node_usage, request.queue, amounts)
        return assignment if self.backfill.fits_quota(release) else None

    def _mark_releasing(self, victim: Victim) -> None:
        if victim.gang_usage is None:
            self.ledger.deallocate(victim.freed)
        else:
            self.ledger.mark_releasing(victim.freed)

    def _unmark_releasing(self, victim: Victim) -> None:
        if victim.gang_usage is None:
            self.ledger.allocate(victim.freed)
        else:
            self.ledger.unmark_releasing(victim.freed)


MAX_DOMAINS_TRIED = 16
"""Number of required domains that are searched in full, those that lack the fewest pods first."""


@dataclass(slots=True)
class Preemptor:
    """The search for victims, with what all searches of one plan share."""

    cache: PlannerCache
    ledger: Ledger
    backfill: BackfillReservations
    candidates: PreemptionCandidates
    guarantees: GuaranteeEligibility
    _capacity_by_queues: VersionedCache[tuple[int, ...], tuple[Mapping[int, int], FreeCapacity]] = field(
        default_factory=VersionedCache
    )

    def may_preempt(self, gang: Gang, request: QueueRequest) -> bool:
        """Whether the gang may preempt any gang at all."""
        if self.candidates.lower_priority(request.queue, gang.priority) is not None:
            return True
        below_root = (1 << len(self.cache.tree.path[request.queue]) - 1) - 1
        return any(within & below_root for within in self.guarantees.covered(request))

    def find(self, gang: Gang, request: QueueRequest) -> PreemptionResult | None:
        """The cheapest set of victims, in the first option that has one; the ledger is unchanged."""
        lower = self.candidates.lower_priority(request.queue, gang.priority)
        within = self.guarantees.covered(request)
        for option in range(len(request.gang_request.options)):
            rights = PreemptionRights.of(gang, request, option, self.ledger.usage_later, within[option])
            queues = self.candidates.reclaimable(rights, self.ledger.version)
            if not queues and lower is None:
                continue
            regions = self._candidate_regions(request, option, queues, lower)
            if not regions:
                continue
            start_by = self.cache.snapshot.now + self.candidates.longest_grace_s() + gang.start_timeout_s
            reservations = self.backfill.relevant(
                request.gang_request.options[option], self.backfill.binding(latest_release(gang, start_by))
            )
            search = PreemptionSearch(
                self.ledger, self.backfill, self.candidates, request, option, rights, gang, start_by, reservations
            )
            victims = list(self.candidates.in_order(rights, queues))
            best = self._cheapest(search, ((region, single_groups(victims)) for region in regions))
            if best is None and search.guarantee_reached:
                node_groups = NodeCandidateGroups(
                    victims, self.ledger.free_later, hardest_pod(self.cache.table, request.gang_request.options[option])
                )
                best = self._cheapest(search, ((region, node_groups.within(region)) for region in regions))
            if best is not None:
                return best
        return None

    def _cheapest(
        self, search: PreemptionSearch, regions: Iterable[tuple[BoolArray, Iterable[CandidateGroup]]]
    ) -> PreemptionResult | None:
        """The cheapest result of some regions, each with its candidates in order."""
        best: PreemptionResult | None = None
        for region, candidates in regions:
            with self.ledger.trial():
                freed = search.find(candidates, region)
            if freed is not None and (best is None or freed.cost < best.cost):
                best = freed
        return best

    def _candidate_regions(
        self, request: QueueRequest, option: int, queues: tuple[int, ...], lower_priority: CandidateSet | None
    ) -> list[BoolArray]:
        """Regions of rows whose victims may help: required domains, most promising first, else all rows of the gang's
        flavors. None where it would not fit even without any gang that it may preempt."""
        amounts, capacity = self._capacity_without(queues)
        preempted = {} if lower_priority is None else lower_priority.amounts()
        for cell, amount in request.min_quota[option]:
            avail = self.ledger.usage_later.available(request.queue, cell)
            if avail + amounts.get(cell, 0) + preempted.get(cell, 0) < amount:
                return []
        flavor_option, sizes = request.gang_request.options[option], request.gang_request.min_sizes
        node_usage = None if lower_priority is None else lower_priority.node_usage()
        domains: IntArray | None = None
        for group in flavor_option.groups:
            span, tier = self.cache.table.flavors[group.flavor], group.required or 0
            enough = span.tiers[tier].is_named.copy()
            lacking = np.zeros(len(enough), dtype=np.int64)
            for pod, role in zip(group.pods, group.roles, strict=True):
                counts = capacity.counts(pod)[tier]
                if node_usage is not None:
                    counts = counts + max_gain(self.cache.table, pod, node_usage, tier)
                enough &= counts >= sizes[role]
                lacking += np.maximum(0, sizes[role] - self.ledger.free_later.counts(pod)[tier])
            domains = np.flatnonzero(enough)
            if not len(domains):
                return []
            domains = domains[np.argsort(lacking[domains], kind="stable")]
        group = flavor_option.groups[0]
        if len(flavor_option.groups) > 1 or group.required is None or domains is None:
            return [self._rows_of_flavors(flavor_option.flavors)]
        span, tier = self.cache.table.flavors[group.flavor], group.required
        edges = span.start + span.tiers[tier].first_node
        return [self._rows_between(int(edges[d]), int(edges[d + 1])) for d in domains[:MAX_DOMAINS_TRIED]]

    def _capacity_without(self, queues: tuple[int, ...]) -> tuple[Mapping[int, int], FreeCapacity]:
        """What all gangs of some queues use together, and the capacity without them."""
        known, later = self._capacity_by_queues.at(self.ledger.version), self.ledger.free_later
        if queues not in known:
            gangs = CandidateSet([member for queue in queues for member in self.candidates.members(queue)])
            if not gangs.members:
                return {}, later
            free, node_usage = later.free.copy(), gangs.node_usage()
            np.add.at(free, node_usage.rows, node_usage.amounts)
            known[queues] = gangs.amounts(), FreeCapacity(later.masks, free)
        return known[queues]

    def _rows_of_flavors(self, flavors: Collection[str]) -> BoolArray:
        region = self._rows_between(0, 0)
        for flavor in flavors:
            span = self.cache.table.flavors[flavor]
            region[span.start : span.stop] = True
        return region

    def _rows_between(self, start: int, stop: int) -> BoolArray:
        region = np.zeros(len(self.cache.table.nodes), dtype=np.bool_)
        region[start:stop] = True
        return region
