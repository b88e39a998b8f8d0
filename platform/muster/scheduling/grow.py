"""Grows elastic gangs below their full size into capacity that no waiting gang can use.

Growing costs the gang a checkpoint and a restart, so it happens at most every ten minutes, and never into capacity that
would be reclaimed at once: a flavor that a gang within its guarantee waits for, or that a gang of the same leaf waits
for. Reserved capacity is not used either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.model import GROWTH_REST_S
from muster.quota import CellAmounts
from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.fit import GangAssignment, fit
from muster.scheduling.gang_requests import QueueRequest, largest_feasible
from muster.scheduling.ledger import Ledger
from muster.scheduling.nominations import placed_pods
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.releases import ExpectedRelease, GangUsage


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
    preempting: Collection[str],
) -> Iterator[Growth]:
    """Growths one by one; the caller allocates each before it asks for the next. `preempting` are uids that are being
    evicted or shrunk."""
    candidates = [
        gang_usage
        for uid, gang_usage in cache.running.items()
        if gang_usage.elastic
        and gang_usage.is_admitted
        and uid not in preempting
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
        return None  # its queue is inactive, or one of its nodes is gone
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
