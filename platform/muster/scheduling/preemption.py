"""Finds victims whose eviction or shrinking lets a gang start.

Victims are tried in order (`preemption_search`). If that fails because a borrower was back within its guarantee too
soon, they are tried node by node (`candidate_groups`). If a domain is required, the one with the cheapest victims is
used. Most searches end early: even without all candidates the gang would not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.candidate_groups import CandidateGroup, NodeCandidateGroups, hardest_pod, single_groups
from muster.scheduling.capacity import FreeCapacity, max_gain
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.guarantees import GuaranteeEligibility
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray, IntArray
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.preemption_candidates import CandidateSet, PreemptionCandidates, PreemptionRights
from muster.scheduling.preemption_search import PreemptionResult, PreemptionSearch
from muster.scheduling.releases import latest_release
from muster.scheduling.versioned_cache import VersionedCache

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
            until = latest_release(gang, start_by)
            bound = self.backfill.relevant(request.gang_request.options[option], self.backfill.binding(until))
            search = PreemptionSearch(
                self.ledger, self.backfill, self.candidates, request, option, rights, gang, until, bound
            )
            victims = list(self.candidates.in_order(rights, queues))
            best = self._cheapest(search, ((region, single_groups(victims)) for region in regions))
            if best is None and search.guarantee_reached:
                bundles = NodeCandidateGroups(
                    victims, self.ledger.free_later, hardest_pod(self.cache.table, request.gang_request.options[option])
                )
                best = self._cheapest(search, ((region, bundles.within(region)) for region in regions))
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
        flavors. None where it would not fit even without more gangs than it may preempt."""
        amounts, capacity = self._capacity_without(queues)
        preempted = {} if lower_priority is None else lower_priority.amounts()
        for cell, amount in request.min_quota[option]:
            avail = self.ledger.usage_later.available(request.queue, cell)
            if avail + amounts.get(cell, 0) + preempted.get(cell, 0) < amount:
                return []
        way, sizes = request.gang_request.options[option], request.gang_request.min_sizes
        load = None if lower_priority is None else lower_priority.node_usage()
        domains: IntArray | None = None
        for group in way.groups:
            span, tier = self.cache.table.flavors[group.flavor], group.required or 0
            enough = span.tiers[tier].is_named.copy()
            lacking = np.zeros(len(enough), dtype=np.int64)
            for pod, role in zip(group.pods, group.roles, strict=True):
                counts = capacity.counts(pod)[tier]
                if load is not None:
                    counts = counts + max_gain(self.cache.table, pod, load, tier)
                enough &= counts >= sizes[role]
                lacking += np.maximum(0, sizes[role] - self.ledger.free_later.counts(pod)[tier])
            domains = np.flatnonzero(enough)
            if not len(domains):
                return []
            domains = domains[np.argsort(lacking[domains], kind="stable")]
        group = way.groups[0]
        if len(way.groups) > 1 or group.required is None or domains is None:
            return [self._rows_of_flavors(way.flavors)]
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
