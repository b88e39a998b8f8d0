"""Estimated start times of pending gangs, as far as running gangs declare a maximum run time.

A gang with a reservation starts at its time. For the others demand is added up in queue order: that much of its flavor
(on nodes that are up) and of its queue's quota has to become free for all gangs ahead and for the gang itself. That
ignores where capacity becomes free, and that gangs ahead end too: it is an estimate. None if a gang without a maximum
run time has to end first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.gang_requests import FlavorOption, QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.quota_forecast import QuotaForecast
from muster.scheduling.releases import ExpectedReleases

ESTIMATED_REASONS = frozenset(
    {"InsufficientResources", "TopologyUnsatisfiable", "BlockedByReservation", "QuotaExceeded", "BlockedByQueueHead"}
)
"""Reasons of gangs that start once others have ended."""


def estimate_starts(
    cache: PlannerCache,
    ledger: Ledger,
    backfill: BackfillReservations,
    unschedulable: Mapping[str, UnschedulableReason],
) -> dict[str, float]:
    """Estimated starts by uid. `refusals` are in the order in which they were made: the queue order, except that gangs
    with the request of an earlier refused gang are refused a little sooner, which moves estimates and nothing else."""
    now = cache.snapshot.now
    waiting = [
        (uid, cache.pending[uid].request, why)
        for uid, why in unschedulable.items()
        if why.reason in ESTIMATED_REASONS and uid not in cache.infeasible  # it is not known when unmanaged pods end
    ]
    if not waiting:
        return {}
    releases = backfill.releases()
    by_room = _times_by_capacity(cache, ledger, releases, [(request, why.option) for _, request, why in waiting])
    quota = _QuotaTimes(
        ledger.quota_forecast, [] if ledger.quota_forecast is None else ledger.quota_forecast.times.tolist()
    )
    found: dict[str, float] = {}
    soon: float | None = None
    for (uid, request, why), at in zip(waiting, by_room, strict=True):
        promised = backfill.start_times.get(uid)
        if promised is None:
            if why.reason == "QuotaExceeded":
                at = max(at, quota.time_of(request, why.option))
            if at > now and not math.isinf(at):
                found[uid] = at
        elif promised == -math.inf:
            soon = _releasing_done_at(cache, now) if soon is None else soon
            found[uid] = soon
        elif not math.isinf(promised):
            found[uid] = max(promised, now)
    return found


def _releasing_done_at(cache: PlannerCache, now: float) -> float:
    """When terminating gangs will be gone."""
    return now + max(
        (gang_usage.running.gang.grace_s for gang_usage in cache.running.values() if not gang_usage.is_admitted),
        default=0.0,
    )


def _times_by_capacity(
    cache: PlannerCache, ledger: Ledger, releases: ExpectedReleases, waiting: list[tuple[QueueRequest, int]]
) -> Iterable[float]:
    """For each gang in order, when enough of its flavors will be free for it and all gangs ahead."""
    at = np.full(len(waiting), -math.inf)
    order = np.argsort(releases.positions)
    times = np.concatenate([[-math.inf], releases.release_at[order], [math.inf]])
    columns = len(cache.table.columns)
    ways: dict[FlavorOption, tuple[int, QueueRequest, int]] = {}
    which = [
        ways.setdefault(request.gang_request.options[option], (len(ways), request, option))[0]
        for request, option in waiting
    ]
    for name, span in cache.table.flavors.items():
        needed = np.array(
            [cache.request_cache.min_usage(request.gang_request, option, name) for _, request, option in ways.values()]
        )
        if not needed.any():
            continue
        need = needed[which]
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
    )  # (queue, cell): from each moment on
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
