"""The soft promises to gangs that cannot start yet, and who may start behind them.

EASY backfill: of everyone who runs it is known, at the latest, when they are gone (`maxRuntimeSeconds`). So there is a
time at which the blocked gang will fit, and a place where: its reservation. Others may start meanwhile if they are
gone by then, or if they leave the reserved place alone. A gang without a bound is never gone by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.model import WaitCode
from muster.scheduling.departures import Departure, Departures, Releases
from muster.scheduling.fit import Fit, fit, fits
from muster.scheduling.ledger import Ledger, Promised
from muster.scheduling.outlook import Outlook
from muster.scheduling.room import Both, Room, View
from muster.scheduling.shape import Option, Request


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A place and a time for one gang, and what is left beside it then.

    `at` is infinite when somebody has to leave first who does not say when, and minus infinity when those have to who
    are leaving already.
    """

    gang: str
    root: int
    option: Option
    flavors: frozenset[str]
    at: float
    fit: Fit
    promised: Promised


Bound: TypeAlias = tuple[int, ...]
"""Reservations that a gang has to respect, as indexes into `Promises.reservations`."""


@dataclass(slots=True)
class Promises:
    """Reservations of room, claims on quota, and the future they are computed from."""

    ledger: Ledger
    known: Departures  # of those who ran when the plan began
    reservations: list[Reservation] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)  # when a gang with a promise starts, by uid
    _reserved: set[tuple[int, str]] = field(default_factory=set)  # (root, flavor)
    _claims: set[tuple[int, str]] = field(default_factory=set)
    _gone: set[int] = field(default_factory=set)  # ties
    _come: dict[str, Departure] = field(default_factory=dict)
    _merged: Departures | None = None
    _releases: Releases | None = None
    _touching: dict[tuple[Option, Bound], Bound] = field(default_factory=dict)
    _views: dict[tuple[Bound, bool], View] = field(default_factory=dict)

    def come(self, gang: Departure) -> None:
        """Somebody took room in this plan, or goes on with less."""
        self._come[gang.uid] = gang
        self._merged = None

    def gone(self, gang: Departure) -> None:
        """Somebody was told to leave, or lost its hold."""
        if self._come.pop(gang.uid, None) is None:
            self._gone.add(gang.tie)
        self._merged = None

    def binding(self, gone_by: float) -> Bound:
        """Which reservations a gang has to respect that is gone by then: all that matters of `gone_by` for room."""
        if not self.reservations:
            return ()
        never = math.isinf(gone_by)
        return tuple([i for i, r in enumerate(self.reservations) if never or gone_by > r.at])

    def touching(self, option: Option, binding: Bound) -> Bound:
        """Those of them that lie in a flavor of an option."""
        if not binding:
            return ()
        bound = self._touching.get((option, binding))
        if bound is None:
            bound = tuple(i for i in binding if not self.reservations[i].flavors.isdisjoint(option.flavors))
            self._touching[option, binding] = bound
        return bound

    def view(self, bound: Bound, *, later: bool = False) -> View:
        """The room that a gang may use which has to respect these: now, or once those who are leaving have left."""
        room = self.ledger.later if later else self.ledger.now
        if not bound:
            return room
        view = self._views.get((bound, later))
        if view is None:
            rooms = [room, *(self.reservations[i].promised.spare for i in bound)]
            view = self._views[bound, later] = Both(rooms)
        return view

    def allow(self, gang: Departure) -> bool:
        """Tell whether a gang is within quota beside what is promised to others."""
        return self.ledger.outlook is None or gang.queue < 0 or self.ledger.outlook.allows(gang)

    def reserve(self, uid: str, request: Request, root: int) -> None:
        """Promise a place and a time to the first gang of its root, in each flavor, that lacks only room.

        A gang that not even an empty cluster would hold (nodes are down) gets no promise: it
        would block others for nothing.
        """
        shape, ledger = request.shape, self.ledger
        best: tuple[int, int, Fit, Room] | None = None
        for index, option in enumerate(shape.options):
            least = request.least[index]
            taken = any((root, flavor) in self._reserved for flavor in option.flavors)
            if taken or not ledger.charged.allows(request.queue, least):
                continue
            moment = self._look().earliest(request.queue, least)
            if moment is None:
                continue
            most = len(self.departures()) if best is None else best[0] - 1
            found = self._first_fit(option, request, int(self._look().left[moment]), most)
            if found is not None:
                best = (found[0], index, *found[1:])
        if best is None:
            return
        count, index, place, spare = best
        spare.add(place.load, -1)
        last = self.departures().key_of(count)
        flavors = frozenset(shape.options[index].flavors)
        reservation = Reservation(uid, root, shape.options[index], flavors, last[0], place, Promised(spare, last))
        self.reservations.append(reservation)
        self._reserved.update((root, flavor) for flavor in reservation.flavors)
        ledger.promised.append(reservation.promised)
        self.starts[uid] = reservation.at
        outlook = self._look()
        outlook.charge(request.queue, request.least[index], outlook.after(count), None)

    def may_promise(self, request: Request, code: WaitCode) -> bool:
        """Tell whether a gang that is refused may get a promise: in some option's flavors no gang that comes first has
        a claim already (in the leaf, when quota is short) or a reservation (in the root)."""
        if code == "QuotaExceeded":
            taken, queue = self._claims, request.queue
        else:
            taken, queue = self._reserved, self.ledger.charged.tree.path[request.queue][-1]
        for option in request.shape.options:  # asked for every gang that waits: no generator
            for flavor in option.flavors:
                if (queue, flavor) in taken:
                    break
            else:
                return True
        return False

    def promise(self, uid: str, request: Request, code: WaitCode) -> None:
        """Promise quota or room to a gang that lacks it. Ask `may_promise` first."""
        if code == "QuotaExceeded":
            self.claim(uid, request)
        else:
            self.reserve(uid, request, self.ledger.charged.tree.path[request.queue][-1])

    def claim(self, uid: str, request: Request) -> None:
        """Promise quota to the first gang of its leaf, in each flavor, that is over it."""
        best: tuple[int, int] | None = None
        for index, option in enumerate(request.shape.options):
            if any((request.queue, flavor) in self._claims for flavor in option.flavors):
                continue
            moment = self._look().earliest(request.queue, request.least[index])
            if moment is not None and (best is None or moment < best[0]):
                best = moment, index
        if best is None:
            return
        moment, index = best
        self._claims.update((request.queue, flavor) for flavor in request.shape.options[index].flavors)
        outlook = self._look()
        outlook.charge(request.queue, request.least[index], moment, None)
        self.starts[uid] = float(outlook.times[moment])

    def _first_fit(self, option: Option, request: Request, low: int, high: int) -> tuple[int, Fit, Room] | None:
        """After how many departures, from `low` to `high`, the gang first fits, where, and the room there is then.

        The search halves the range. The room after the most that were too few is carried along, so that each step
        looks only at the nodes that come free in between.
        """
        table, sizes = self.ledger.now.table, request.shape.least
        if low > high or not fits(table, option, sizes, enough := self._room_after(high)):
            return None
        releases = self._in_turn()
        left, room = low, self._room_after(low)
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

    def _room_after(self, count: int) -> Room:
        """Room once so many have left, what is reserved already aside."""
        room = self.ledger.later.successor()
        room.add(self._in_turn().between(0, count, len(room.free)), 1)
        for reservation in self.reservations:
            room.add(reservation.fit.load, -1)
        return room

    def _in_turn(self) -> Releases:
        departures = self.departures()
        if self._releases is None:
            self._releases = departures.in_turn()
        return self._releases

    def departures(self) -> Departures:
        """Of everyone, as decided so far."""
        if self._merged is None:
            self._releases = None
            columns = len(self.ledger.now.table.columns)
            self._merged = self.known.without(self._gone).plus(Departures.of(self._come.values(), columns))
        return self._merged

    def _look(self) -> Outlook:
        if self.ledger.outlook is None:
            self.ledger.outlook = Outlook(self.ledger.staying, self.departures())
        return self.ledger.outlook
