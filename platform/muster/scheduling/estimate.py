"""When a waiting gang may expect to start, as far as running gangs declare their end.

A gang with a promise starts at its time. For the others everyone in line is added up: so much has to come free for all
who are ahead, and for the gang itself, of its flavor (on nodes that are up) and of its queue's quota. That leaves aside
where in the cluster it comes free, and that those ahead will end one day: an estimate, no promise. None where somebody
has to leave first who does not say when.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.scheduling.backfill import Promises
from muster.scheduling.departures import Departures
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.outlook import Outlook
from muster.scheduling.refuse import Refusal
from muster.scheduling.shape import Option, Request

HOPEFUL = frozenset({"NoRoom", "TopologyNoRoom", "Reserved", "QuotaExceeded", "BehindHead"})
"""Codes of gangs that start once others have left."""


def estimates(facts: Memo, ledger: Ledger, promises: Promises, refusals: Mapping[str, Refusal]) -> dict[str, float]:
    """Expected starts by uid, of those that have one.

    `refusals` are in the order in which they were made: that of the line, but gangs that ask for what somebody before
    them was refused are passed over, and so refused, a little sooner. That moves estimates, and nothing else.
    """
    now = facts.snapshot.now
    waiting = [
        (uid, facts.requests[uid].request, why)
        for uid, why in refusals.items()
        if why.code in HOPEFUL and uid not in facts.never  # pods that are not ours do not say when they end
    ]
    if not waiting:
        return {}
    departures = promises.departures()
    by_room = _by_room(facts, ledger, departures, [(request, why.option) for _, request, why in waiting])
    quota = _QuotaTimes(ledger.outlook, [] if ledger.outlook is None else ledger.outlook.times.tolist())
    found: dict[str, float] = {}
    soon: float | None = None
    for (uid, request, why), at in zip(waiting, by_room, strict=True):
        promised = promises.starts.get(uid)
        if promised is None:
            if why.code == "QuotaExceeded":
                at = max(at, quota.time_of(request, why.option))
            if at > now and not math.isinf(at):
                found[uid] = at
        elif promised == -math.inf:
            soon = _soon(facts, now) if soon is None else soon
            found[uid] = soon
        elif not math.isinf(promised):
            found[uid] = max(promised, now)
    return found


def _soon(facts: Memo, now: float) -> float:
    """When those who are leaving will have left."""
    return now + max((stay.running.gang.grace_s for stay in facts.stays.values() if not stay.settled), default=0.0)


def _by_room(facts: Memo, ledger: Ledger, departures: Departures, line: list[tuple[Request, int]]) -> Iterable[float]:
    """For each in line, when enough of its flavors will have come free for it and all ahead of it."""
    at = np.full(len(line), -math.inf)
    order = np.argsort(departures.rank)
    times = np.concatenate([[-math.inf], departures.by[order], [math.inf]])
    columns = len(facts.table.columns)
    ways: dict[Option, tuple[int, Request, int]] = {}
    which = [
        ways.setdefault(request.shape.options[option], (len(ways), request, option))[0] for request, option in line
    ]
    for name, span in facts.table.flavors.items():
        asked = np.array([facts.shapes.takes(request.shape, option, name) for _, request, option in ways.values()])
        if not asked.any():
            continue
        need = asked[which]
        usable = np.zeros(len(facts.table.nodes), dtype=np.bool_)
        usable[span.start : span.stop] = facts.table.up[span.start : span.stop]
        freed = departures.by_gang(usable)
        free = np.maximum(0, ledger.later.free[usable]).sum(axis=0)
        total = np.cumsum(np.concatenate([free[None, :], freed[order]]), axis=0)
        ahead = np.cumsum(need, axis=0)
        for column in range(columns):
            wants = need[:, column] > 0
            first = np.searchsorted(total[:, column], ahead[wants, column])
            at[wants] = np.maximum(at[wants], times[first])
    return at.tolist()


@dataclass(slots=True)
class _QuotaTimes:
    """When quota allows one gang of a leaf after the other. The first of a leaf has a claim, charged already."""

    outlook: Outlook | None
    times: list[float]  # of the outlook
    _sure: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (queue, cell): from each moment on
    _ahead: dict[tuple[int, int], int] = field(default_factory=dict)

    def time_of(self, request: Request, option: int) -> float:
        """When there is quota for this gang too. Ask in the order of the line."""
        if self.outlook is None:
            return math.inf
        times, at = self.times, -math.inf
        for cell, amount in request.least[option]:
            key = (request.queue, cell)
            if key not in self._sure:
                avail = self.outlook.avail(request.queue, cell)
                self._sure[key] = np.minimum.accumulate(avail[::-1])[::-1].tolist()
            ahead = self._ahead[key] = self._ahead.get(key, 0) + amount
            first = bisect_left(self._sure[key], ahead)
            at = max(at, times[first] if first < len(times) else math.inf)
        return at
