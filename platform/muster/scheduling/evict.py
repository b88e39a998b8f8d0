"""Room for a gang that may make others shrink or leave, and only if it then starts.

Victims are asked in order (`search`). Where that order finds nothing because a borrower was back at its guarantee too
soon, they are asked node by node instead (`bundles`). Where a domain is required, the domain whose victims cost least
wins. Most searches end before they begin: even if everybody left whom the gang may ask, it would not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import Promises
from muster.scheduling.bundles import Bundle, Bundles, alone, hardest
from muster.scheduling.departures import gone_by
from muster.scheduling.entitle import Entitlement
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.nodes import BoolArray, IntArray
from muster.scheduling.room import Room, most_gained
from muster.scheduling.search import Freed, Search
from muster.scheduling.shape import Request
from muster.scheduling.victims import Rights, Several, Victims

DOMAINS_TRIED = 16
"""Required domains that are tried in full, those that lack the fewest pods first."""


@dataclass(slots=True)
class Evictions:
    """The search for victims, with what all searches of one plan share."""

    facts: Memo
    ledger: Ledger
    promises: Promises
    victims: Victims
    entitlement: Entitlement
    _version: int = -1
    _potential: dict[tuple[int, ...], tuple[Mapping[int, int], Room]] = field(default_factory=dict)

    def may_ask(self, gang: Gang, request: Request) -> bool:
        """Tell whether the gang is entitled to anybody's room at all."""
        if self.victims.lower(request.queue, gang.priority) is not None:
            return True
        below_root = (1 << len(self.facts.tree.path[request.queue]) - 1) - 1
        return any(within & below_root for within in self.entitlement.of(request))

    def room_for(self, gang: Gang, request: Request) -> Freed | None:
        """The cheapest set of victims, in the first option that has one; the ledger is left as it was."""
        lower = self.victims.lower(request.queue, gang.priority)
        within = self.entitlement.of(request)
        for option in range(len(request.shape.options)):
            rights = Rights.of(gang, request, option, self.ledger.staying, within[option])
            queues = self.victims.reclaimable(rights, self.ledger.version)
            if not queues and lower is None:
                continue
            regions = self._regions(request, option, queues, lower)
            if not regions:
                continue
            start_by = self.facts.snapshot.now + self.victims.longest_grace_s() + gang.start_timeout_s
            until = gone_by(gang, start_by)
            bound = self.promises.touching(request.shape.options[option], self.promises.binding(until))
            search = Search(self.ledger, self.promises, self.victims, request, option, rights, gang, until, bound)
            victims = list(self.victims.of(rights, queues))
            best = self._cheapest(search, ((region, alone(victims)) for region in regions))
            if best is None and search.refused:
                bundles = Bundles(victims, self.ledger.later, hardest(self.facts.table, request.shape.options[option]))
                best = self._cheapest(search, ((region, bundles.within(region)) for region in regions))
            if best is not None:
                return best
        return None

    def _cheapest(self, search: Search, regions: Iterable[tuple[BoolArray, Iterable[Bundle]]]) -> Freed | None:
        """Of some regions, each with whom to ask there, in order."""
        best: Freed | None = None
        for region, asked in regions:
            with self.ledger.trial():
                freed = search.freed(asked, region)
            if freed is not None and (best is None or freed.cost < best.cost):
                best = freed
        return best

    def _regions(
        self, request: Request, option: int, queues: tuple[int, ...], lower: Several | None
    ) -> list[BoolArray]:
        """Rows whose victims may help: one required domain after the other, most promising first, else all rows of
        the gang's flavors. None where it would not fit even if more left than it may ask."""
        amounts, room = self._without(queues)
        preempted = {} if lower is None else lower.amounts()
        for cell, amount in request.least[option]:
            avail = self.ledger.staying.avail(request.queue, cell)
            if avail + amounts.get(cell, 0) + preempted.get(cell, 0) < amount:
                return []
        way, sizes = request.shape.options[option], request.shape.least
        load = None if lower is None else lower.load()
        domains: IntArray | None = None
        for spot in way.spots:
            span, tier = self.facts.table.flavors[spot.flavor], spot.required or 0
            enough = span.tiers[tier].named.copy()
            lacking = np.zeros(len(enough), dtype=np.int64)
            for pod, role in zip(spot.pods, spot.roles, strict=True):
                counts = room.counts(pod)[tier]
                if load is not None:
                    counts = counts + most_gained(self.facts.table, pod, load, tier)
                enough &= counts >= sizes[role]
                lacking += np.maximum(0, sizes[role] - self.ledger.later.counts(pod)[tier])
            domains = np.flatnonzero(enough)
            if not len(domains):
                return []
            domains = domains[np.argsort(lacking[domains], kind="stable")]
        spot = way.spots[0]
        if len(way.spots) > 1 or spot.required is None or domains is None:
            return [self._rows(way.flavors)]
        span, tier = self.facts.table.flavors[spot.flavor], spot.required
        edges = span.start + span.tiers[tier].first_node
        return [self._between(int(edges[d]), int(edges[d + 1])) for d in domains[:DOMAINS_TRIED]]

    def _without(self, queues: tuple[int, ...]) -> tuple[Mapping[int, int], Room]:
        """What everybody in some queues uses together, and the room if all of that were gone."""
        if self._version != self.ledger.version:
            self._version = self.ledger.version
            self._potential.clear()
        if queues not in self._potential:
            later = self.ledger.later
            everybody = Several([member for queue in queues for member in self.victims.members(queue)])
            if not everybody.members:
                return {}, later
            free, load = later.free.copy(), everybody.load()
            np.add.at(free, load.rows, load.amounts)
            self._potential[queues] = everybody.amounts(), Room(later.masks, free)
        return self._potential[queues]

    def _rows(self, flavors: Collection[str]) -> BoolArray:
        region = self._between(0, 0)
        for flavor in flavors:
            span = self.facts.table.flavors[flavor]
            region[span.start : span.stop] = True
        return region

    def _between(self, start: int, stop: int) -> BoolArray:
        region = np.zeros(len(self.facts.table.nodes), dtype=np.bool_)
        region[start:stop] = True
        return region
