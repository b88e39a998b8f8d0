"""The soft promises to gangs that cannot start yet, and who may start behind them.

EASY backfill: of everyone who runs it is known, at the latest, when they are gone (`maxRuntimeSeconds`). So there is a
time at which the blocked gang will fit, and a place where: its reservation. Others may start meanwhile if they are
gone by then, or if they leave the reserved place alone. A gang without a bound is never gone by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.model import WaitReason
from muster.scheduling.capacity import CapacityView, FreeCapacity, IntersectionView
from muster.scheduling.fit import GangAssignment, fit, fits
from muster.scheduling.gang_requests import FlavorOption, QueueRequest
from muster.scheduling.ledger import Ledger, ReservedCapacity
from muster.scheduling.quota_forecast import QuotaForecast
from muster.scheduling.releases import ExpectedRelease, ExpectedReleases, OrderedReleases


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A place and a time for one gang, and what is left beside it then.

    `at` is infinite when somebody has to leave first who does not say when, and minus infinity when those have to who
    are leaving already.
    """

    gang_uid: str
    root: int
    option: FlavorOption
    flavors: frozenset[str]
    at: float
    assignment: GangAssignment
    capacity: ReservedCapacity


ReservationIndexes: TypeAlias = tuple[int, ...]
"""Reservations that a gang has to respect, as indexes into `Promises.reservations`."""


@dataclass(slots=True)
class BackfillReservations:
    """Reservations of room, claims on quota, and the future they are computed from."""

    ledger: Ledger
    releases_at_start: ExpectedReleases  # of those who ran when the plan began
    reservations: list[Reservation] = field(default_factory=list)
    start_times: dict[str, float] = field(default_factory=dict)  # when a gang with a promise starts, by uid
    _reserved: set[tuple[int, str]] = field(default_factory=set)  # (root, flavor)
    _claimed: set[tuple[int, str]] = field(default_factory=set)
    _removed: set[int] = field(default_factory=set)  # ties
    _added: dict[str, ExpectedRelease] = field(default_factory=dict)
    _merged: ExpectedReleases | None = None
    _ordered: OrderedReleases | None = None
    _relevant: dict[tuple[FlavorOption, ReservationIndexes], ReservationIndexes] = field(default_factory=dict)
    _views: dict[tuple[ReservationIndexes, bool], CapacityView] = field(default_factory=dict)

    def add_release(self, release: ExpectedRelease) -> None:
        """Somebody took room in this plan, or goes on with less."""
        self._added[release.uid] = release
        self._merged = None

    def remove_release(self, release: ExpectedRelease) -> None:
        """Somebody was told to leave, or lost its hold."""
        if self._added.pop(release.uid, None) is None:
            self._removed.add(release.tiebreak)
        self._merged = None

    def binding(self, release_at: float) -> ReservationIndexes:
        """Which reservations a gang has to respect that is gone by then: all that matters of `gone_by` for room."""
        if not self.reservations:
            return ()
        never = math.isinf(release_at)
        return tuple([i for i, r in enumerate(self.reservations) if never or release_at > r.at])

    def relevant(self, option: FlavorOption, binding: ReservationIndexes) -> ReservationIndexes:
        """Those of them that lie in a flavor of an option."""
        if not binding:
            return ()
        bound = self._relevant.get((option, binding))
        if bound is None:
            bound = tuple(i for i in binding if not self.reservations[i].flavors.isdisjoint(option.flavors))
            self._relevant[option, binding] = bound
        return bound

    def free_capacity(self, indexes: ReservationIndexes, *, later: bool = False) -> CapacityView:
        """The room that a gang may use which has to respect these: now, or once those who are leaving have left."""
        room = self.ledger.free_later if later else self.ledger.free_now
        if not indexes:
            return room
        view = self._views.get((indexes, later))
        if view is None:
            rooms = [room, *(self.reservations[i].capacity.remaining for i in indexes)]
            view = self._views[indexes, later] = IntersectionView(rooms)
        return view

    def fits_quota(self, release: ExpectedRelease) -> bool:
        """Tell whether a gang is within quota beside what is promised to others."""
        return self.ledger.quota_forecast is None or release.queue < 0 or self.ledger.quota_forecast.fits(release)

    def reserve(self, uid: str, request: QueueRequest, root: int) -> None:
        """Promise a place and a time to the first gang of its root, in each flavor, that lacks only room.

        A gang that not even an empty cluster would hold (nodes are down) gets no promise: it
        would block others for nothing.
        """
        shape, ledger = request.gang_request, self.ledger
        best: tuple[int, int, GangAssignment, FreeCapacity] | None = None
        for index, option in enumerate(shape.options):
            least = request.min_quota[index]
            taken = any((root, flavor) in self._reserved for flavor in option.flavors)
            if taken or not ledger.usage_now.fits(request.queue, least):
                continue
            moment = self._forecast().earliest_fit(request.queue, least)
            if moment is None:
                continue
            most = len(self.releases()) if best is None else best[0] - 1
            found = self._earliest_fit(option, request, int(self._forecast().released_counts[moment]), most)
            if found is not None:
                best = (found[0], index, *found[1:])
        if best is None:
            return
        count, index, place, spare = best
        spare.add(place.node_usage, -1)
        last = self.releases().key_at(count)
        flavors = frozenset(shape.options[index].flavors)
        reservation = Reservation(
            uid, root, shape.options[index], flavors, last[0], place, ReservedCapacity(spare, last)
        )
        self.reservations.append(reservation)
        self._reserved.update((root, flavor) for flavor in reservation.flavors)
        ledger.reserved.append(reservation.capacity)
        self.start_times[uid] = reservation.at
        outlook = self._forecast()
        outlook.add(request.queue, request.min_quota[index], outlook.index_after(count), None)

    def may_reserve(self, request: QueueRequest, code: WaitReason) -> bool:
        """Tell whether a gang that is refused may get a promise: in some option's flavors no gang that comes first has
        a claim already (in the leaf, when quota is short) or a reservation (in the root)."""
        if code == "QuotaExceeded":
            taken, queue = self._claimed, request.queue
        else:
            taken, queue = self._reserved, self.ledger.usage_now.tree.path[request.queue][-1]
        for option in request.gang_request.options:  # asked for every gang that waits: no generator
            for flavor in option.flavors:
                if (queue, flavor) in taken:
                    break
            else:
                return True
        return False

    def reserve_or_claim(self, uid: str, request: QueueRequest, code: WaitReason) -> None:
        """Promise quota or room to a gang that lacks it. Ask `may_promise` first."""
        if code == "QuotaExceeded":
            self.claim(uid, request)
        else:
            self.reserve(uid, request, self.ledger.usage_now.tree.path[request.queue][-1])

    def claim(self, uid: str, request: QueueRequest) -> None:
        """Promise quota to the first gang of its leaf, in each flavor, that is over it."""
        best: tuple[int, int] | None = None
        for index, option in enumerate(request.gang_request.options):
            if any((request.queue, flavor) in self._claimed for flavor in option.flavors):
                continue
            moment = self._forecast().earliest_fit(request.queue, request.min_quota[index])
            if moment is not None and (best is None or moment < best[0]):
                best = moment, index
        if best is None:
            return
        moment, index = best
        self._claimed.update((request.queue, flavor) for flavor in request.gang_request.options[index].flavors)
        outlook = self._forecast()
        outlook.add(request.queue, request.min_quota[index], moment, None)
        self.start_times[uid] = float(outlook.times[moment])

    def _earliest_fit(
        self, option: FlavorOption, request: QueueRequest, low: int, high: int
    ) -> tuple[int, GangAssignment, FreeCapacity] | None:
        """After how many departures, from `low` to `high`, the gang first fits, where, and the room there is then.

        The search halves the range. The room after the most that were too few is carried along, so that each step
        looks only at the nodes that come free in between.
        """
        table, sizes = self.ledger.free_now.table, request.gang_request.min_sizes
        if low > high or not fits(table, option, sizes, enough := self._capacity_after(high)):
            return None
        releases = self._releases_in_order()
        left, room = low, self._capacity_after(low)
        while low < high:
            middle = (low + high) // 2
            after = room.fork()
            after.add(releases.between(left, middle, len(room.free)), 1)
            if fits(table, option, sizes, after):
                high, enough = middle, after
            else:
                left, room, low = middle, after, middle + 1
        place = fit(table, option, sizes, enough)
        return None if place is None else (high, place, enough)

    def _capacity_after(self, count: int) -> FreeCapacity:
        """Room once so many have left, what is reserved already aside."""
        room = self.ledger.free_later.carry_over()
        room.add(self._releases_in_order().between(0, count, len(room.free)), 1)
        for reservation in self.reservations:
            room.add(reservation.assignment.node_usage, -1)
        return room

    def _releases_in_order(self) -> OrderedReleases:
        departures = self.releases()
        if self._ordered is None:
            self._ordered = departures.in_order()
        return self._ordered

    def releases(self) -> ExpectedReleases:
        """Of everyone, as decided so far."""
        if self._merged is None:
            self._ordered = None
            columns = len(self.ledger.free_now.table.columns)
            self._merged = self.releases_at_start.without(self._removed).plus(
                ExpectedReleases.of(self._added.values(), columns)
            )
        return self._merged

    def _forecast(self) -> QuotaForecast:
        if self.ledger.quota_forecast is None:
            self.ledger.quota_forecast = QuotaForecast(self.ledger.usage_later, self.releases())
        return self.ledger.quota_forecast
