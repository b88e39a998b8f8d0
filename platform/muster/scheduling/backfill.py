"""EASY backfill: reservations for gangs that cannot start yet, and which gangs may start before them.

`maxRuntimeSeconds` gives the latest release of every running gang. So a blocked gang gets a reservation: the time and
nodes at which it will fit. Others may start if they have ended by then, or if they do not use the reserved capacity. A
gang without a maximum run time never counts as ended by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import WaitReason
from muster.quota import CellAmounts, QuotaUsage
from muster.scheduling.capacity import CapacityView, FreeCapacity, IntersectionView
from muster.scheduling.fit import GangAssignment, fit, fits
from muster.scheduling.gang_requests import FlavorOption, QueueRequest
from muster.scheduling.guaranteed_demand import GuaranteedDemand
from muster.scheduling.ledger import Ledger, QuotaForecast, ReservedCapacity
from muster.scheduling.releases import ExpectedRelease, ExpectedReleases, OrderedReleases


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Time and nodes for one gang, and the capacity left beside it then. `at` is infinite if gangs without a maximum
    run time have to end first, and minus infinity if only terminating gangs do. Gangs that
    have ended by `binds_after` may use its nodes until then."""

    gang_uid: str
    root: int
    option: FlavorOption
    flavors: frozenset[str]
    at: float
    binds_after: float
    assignment: GangAssignment
    capacity: ReservedCapacity


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a reservation could be: the option, after how many releases, its nodes, and the capacity then; and the quota
    charged then, if its time is unknown and gangs are bound in any case."""

    option: int
    count: int
    assignment: GangAssignment
    capacity: FreeCapacity
    usage: QuotaUsage | None


ReservationIndexes: TypeAlias = tuple[int, ...]
"""Reservations that a gang must respect, as indexes into `BackfillReservations.reservations`."""


@dataclass(slots=True)
class BackfillReservations:
    """Reservations of capacity, claims on quota, and the expected releases they are computed from."""

    ledger: Ledger
    releases_at_start: ExpectedReleases  # of gangs that ran when the plan began
    demand: GuaranteedDemand | None = None  # None: the order knows no guarantees
    reservations: list[Reservation] = field(default_factory=list)
    start_times: dict[str, float] = field(default_factory=dict)  # expected start of gangs with a reservation, by uid
    _reserved: set[tuple[int, str]] = field(default_factory=set)  # (root, flavor)
    _claimed: set[tuple[int, str]] = field(default_factory=set)
    _ahead: set[str] = field(default_factory=set)  # uids
    _removed: set[int] = field(default_factory=set)  # tiebreaks
    _added: dict[str, ExpectedRelease] = field(default_factory=dict)
    _merged: ExpectedReleases | None = None
    _ordered: OrderedReleases | None = None
    _relevant: dict[tuple[FlavorOption, ReservationIndexes], ReservationIndexes] = field(default_factory=dict)
    _views: dict[tuple[ReservationIndexes, bool], CapacityView] = field(default_factory=dict)

    def add_release(self, release: ExpectedRelease) -> None:
        """A gang took capacity in this plan, or shrank."""
        self._added[release.uid] = release
        self._merged = None

    def remove_release(self, release: ExpectedRelease) -> None:
        """A gang is evicted, or lost its nomination."""
        if self._added.pop(release.uid, None) is None:
            self._removed.add(release.tiebreak)
        self._merged = None

    def binding(self, release_at: float) -> ReservationIndexes:
        """The reservations that a gang must respect which has ended by this time."""
        if not self.reservations:
            return ()
        unbounded = math.isinf(release_at)
        return tuple([i for i, r in enumerate(self.reservations) if unbounded or release_at > r.binds_after])

    def relevant(self, option: FlavorOption, binding: ReservationIndexes) -> ReservationIndexes:
        """The reservations that share a flavor with an option."""
        if not binding:
            return ()
        indexes = self._relevant.get((option, binding))
        if indexes is None:
            indexes = tuple(i for i in binding if not self.reservations[i].flavors.isdisjoint(option.flavors))
            self._relevant[option, binding] = indexes
        return indexes

    def free_capacity(self, indexes: ReservationIndexes, *, later: bool = False) -> CapacityView:
        """Capacity that a gang may use which must respect these reservations: now, or once terminating gangs are
        gone."""
        capacity = self.ledger.free_later if later else self.ledger.free_now
        if not indexes:
            return capacity
        view = self._views.get((indexes, later))
        if view is None:
            views = [capacity, *(self.reservations[i].capacity.remaining for i in indexes)]
            view = self._views[indexes, later] = IntersectionView(views)
        return view

    def fits_quota(self, release: ExpectedRelease) -> bool:
        """Whether a gang is within quota beside what is claimed by others."""
        if release.queue < 0:
            return True
        for reserved in self.ledger.reserved:
            if reserved.usage is not None and not reserved.usage.fits(release.queue, release.amounts):
                return False
        return self.ledger.quota_forecast is None or self.ledger.quota_forecast.fits(release)

    def reserve(self, uid: str, request: QueueRequest, root: int) -> None:
        """Reserve capacity for the first gang of its root, in each flavor, that lacks capacity only.

        A gang that an empty cluster would not fit (nodes are down) gets no reservation: it would only block others.
        """
        found = self._find_reservation(request, root, lacks_quota=False)
        if found is not None:
            self._add_reservation(uid, request, root, found)

    def reserve_ahead(self, uid: str, request: QueueRequest, root: int, first_since: float) -> bool:
        """Reserve capacity and quota together for a gang that comes before all others since `first_since`; return
        whether that is possible.

        Where its time is unknown, gangs that have started since then count as if they never ended, and any gang may
        start only beside them and the reservation. So the gang starts once those have ended that ran at `first_since`.
        """
        found = self._find_reservation(request, root, lacks_quota=True)
        if found is None:
            return False
        if self.releases().key_at(found.count)[0] == math.inf:
            found = self._find_reservation(request, root, lacks_quota=True, started_before=first_since) or found
        self._add_reservation(uid, request, root, found)
        self._ahead.add(uid)
        return True

    def _find_reservation(
        self, request: QueueRequest, root: int, *, lacks_quota: bool, started_before: float | None = None
    ) -> _Found | None:
        """The earliest time at which the gang fits in some option. `lacks_quota`: it may be over quota now.
        `started_before`: only gangs that started before this time count as ending."""
        best: _Found | None = None
        releases = self.releases() if started_before is None else self.releases().since_before(started_before)
        ordered = self._releases_in_order() if started_before is None else releases.in_order()
        for index, option in enumerate(request.gang_request.options):
            amounts = request.min_quota[index]
            if any((root, flavor) in self._reserved for flavor in option.flavors):
                continue
            if not lacks_quota and not (
                self.ledger.usage_now.fits(request.queue, amounts) and self._is_lasting(request, index)
            ):
                continue
            if started_before is None:
                time_point = self._forecast().earliest_fit(request.queue, amounts)
                first = None if time_point is None else int(self._forecast().released_counts[time_point])
            else:
                first = self._releases_until_quota(releases, request.queue, amounts)
            limit = len(releases) if best is None else best.count - 1
            if first is None or (fit_at := self._earliest_fit(option, request, ordered, first, limit)) is None:
                continue
            usage = None if started_before is None else self._usage_after(releases, fit_at[0])
            best = _Found(index, *fit_at, usage)
        return best

    def _releases_until_quota(self, releases: ExpectedReleases, queue: int, amounts: CellAmounts) -> int | None:
        """After how many releases a request is within quota; None: not after all of them."""
        low, high = 0, len(releases)
        if not self._usage_after(releases, high).fits(queue, amounts):
            return None
        while low < high:
            middle = (low + high) // 2
            if self._usage_after(releases, middle).fits(queue, amounts):
                high = middle
            else:
                low = middle + 1
        return low

    def _usage_after(self, releases: ExpectedReleases, count: int) -> QuotaUsage:
        """What is charged after this many releases. They are summed by queue and cell first: there may be thousands."""
        usage = self.ledger.usage_later.fork()
        released = releases.positions[releases.charge_gang] < count
        keys = releases.charge_queue[released] * usage.cell_count + releases.charge_cell[released]
        places, index = np.unique(keys, return_inverse=True)
        amounts = np.zeros(len(places), dtype=np.int64)
        np.add.at(amounts, index, releases.charge_amount[released])
        for place, amount in zip(places.tolist(), amounts.tolist(), strict=True):
            queue, cell = divmod(place, usage.cell_count)
            usage.add(queue, ((cell, amount),), -1)
        return usage

    def _add_reservation(self, uid: str, request: QueueRequest, root: int, found: _Found) -> None:
        option, amounts = request.gang_request.options[found.option], request.min_quota[found.option]
        found.capacity.add(found.assignment.node_usage, -1)
        flavors = frozenset(option.flavors)
        if found.usage is None:
            last = self.releases().key_at(found.count)
            at = binds_after = last[0]
            forecast = self._forecast()
            forecast.add(request.queue, amounts, forecast.index_after(found.count), None)
        else:
            at, binds_after, last = math.inf, -math.inf, (math.inf, math.inf, 0)
            found.usage.add(request.queue, amounts)
        capacity = ReservedCapacity(found.capacity, last, found.usage)
        self.reservations.append(Reservation(uid, root, option, flavors, at, binds_after, found.assignment, capacity))
        self._reserved.update((root, flavor) for flavor in flavors)
        self.ledger.reserved.append(capacity)
        self.start_times[uid] = at

    def is_ahead(self, uid: str) -> bool:
        """Whether a gang has a reservation that binds all others."""
        return uid in self._ahead

    def is_passed(self, request: QueueRequest) -> bool:
        """Whether gangs within their guarantees pass such a gang, which must borrow."""
        return self.demand is not None and self.demand.is_passed(request)

    def may_reserve(self, request: QueueRequest, code: WaitReason) -> bool:
        """Whether a rejected gang may get a reservation: no gang ahead of it has a claim (in the leaf, if quota is
        short) or a reservation (in the root) in the flavors of some option, and gangs within their guarantees would not
        pass it."""
        if code == "QuotaExceeded":
            taken, queue = self._claimed, request.queue
        else:
            taken, queue = self._reserved, self.ledger.usage_now.tree.path[request.queue][-1]
        for option in request.gang_request.options:  # hot path: no generator
            for flavor in option.flavors:
                if (queue, flavor) in taken:
                    break
            else:
                return not self.is_passed(request)
        return False

    def reserve_or_claim(self, uid: str, request: QueueRequest, code: WaitReason) -> None:
        """Reserve quota or capacity for a gang that lacks it. Call only if `may_reserve`."""
        if code == "QuotaExceeded":
            self.claim(uid, request)
        else:
            self.reserve(uid, request, self.ledger.usage_now.tree.path[request.queue][-1])

    def claim(self, uid: str, request: QueueRequest) -> None:
        """Claim quota for the first gang of its leaf, in each flavor, that exceeds it."""
        best: tuple[int, int] | None = None
        for index, option in enumerate(request.gang_request.options):
            if any((request.queue, flavor) in self._claimed for flavor in option.flavors):
                continue
            if not self._is_lasting(request, index):
                continue
            time_point = self._forecast().earliest_fit(request.queue, request.min_quota[index])
            if time_point is not None and (best is None or time_point < best[0]):
                best = time_point, index
        if best is None:
            return
        time_point, index = best
        self._claimed.update((request.queue, flavor) for flavor in request.gang_request.options[index].flavors)
        forecast = self._forecast()
        forecast.add(request.queue, request.min_quota[index], time_point, None)
        self.start_times[uid] = float(forecast.times[time_point])

    def _is_lasting(self, request: QueueRequest, option: int) -> bool:
        return self.demand is None or self.demand.is_lasting(request, option)

    def _earliest_fit(
        self, option: FlavorOption, request: QueueRequest, releases: OrderedReleases, low: int, high: int
    ) -> tuple[int, GangAssignment, FreeCapacity] | None:
        """The number of releases, from `low` to `high`, after which the gang first fits, its placement, and the
        capacity then.

        A binary search. It carries along the capacity after the largest number that was too few, so each step only
        reads nodes that are released in between.
        """
        table, sizes = self.ledger.free_now.table, request.gang_request.min_sizes
        if low > high or not fits(table, option, sizes, enough := self._capacity_after(releases, high)):
            return None
        released, capacity = low, self._capacity_after(releases, low)
        while low < high:
            middle = (low + high) // 2
            after = capacity.fork()
            after.add(releases.between(released, middle, len(capacity.free)), 1)
            if fits(table, option, sizes, after):
                high, enough = middle, after
            else:
                released, capacity, low = middle, after, middle + 1
        nodes = fit(table, option, sizes, enough)
        return None if nodes is None else (high, nodes, enough)

    def _capacity_after(self, releases: OrderedReleases, count: int) -> FreeCapacity:
        """Capacity after this many releases, without what is reserved."""
        capacity = self.ledger.free_later.carry_over()
        capacity.add(releases.between(0, count, len(capacity.free)), 1)
        for reservation in self.reservations:
            capacity.add(reservation.assignment.node_usage, -1)
        return capacity

    def _releases_in_order(self) -> OrderedReleases:
        releases = self.releases()
        if self._ordered is None:
            self._ordered = releases.in_order()
        return self._ordered

    def releases(self) -> ExpectedReleases:
        """Releases of all gangs, with the decisions so far."""
        if self._merged is None:
            self._ordered = None
            columns = len(self.ledger.free_now.table.columns)
            self._merged = self.releases_at_start.without(self._removed).plus(
                ExpectedReleases.of(self._added.values(), columns)
            )
        return self._merged

    def _forecast(self) -> QuotaForecast:
        forecast = self.ledger.quota_forecast
        return self.ledger.start_quota_forecast(self.releases()) if forecast is None else forecast
