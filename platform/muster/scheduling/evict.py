"""Room for a gang that may make others shrink or leave, and only if it then starts.

Everything is tried in the ledger: victims are asked in order until the gang fits; then whoever turned out needless is
let off, and who shrinks gives no more than it has to. Where that order finds nothing because a borrower was back at its
guarantee too soon, victims are asked node by node instead (`bundles`). Where a domain is required, the domain whose
victims cost least wins. Most searches end before they begin: even if everybody left whom the gang may ask, it would not
fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import Bound, Promises
from muster.scheduling.bundles import Bundle, Bundles, alone
from muster.scheduling.departures import Departure, gone_by, tie_of
from muster.scheduling.entitle import Entitlement
from muster.scheduling.fit import Fit, fit
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.nodes import BoolArray, IntArray
from muster.scheduling.room import PodKind, Room, fitting, most_gained
from muster.scheduling.shape import Request
from muster.scheduling.victims import Reason, Rights, Several, Victim, Victims

Chosen: TypeAlias = dict[str, tuple[Victim, Reason]]
"""Who leaves or shrinks, each with the right by which it is asked, by uid."""

DOMAINS_TRIED = 16
"""Required domains that are tried in full, those that lack the fewest pods first."""


@dataclass(frozen=True, slots=True, eq=False)
class Freed:
    """Room for one gang once its victims have gone, each with the right by which it is asked."""

    option: int
    fit: Fit
    victims: tuple[tuple[Victim, Reason], ...]

    @property
    def cost(self) -> tuple[int, float, int]:
        """The lower the better: highest priority that is disturbed, lost work, number of victims."""
        disturbed = max(victim.gang.priority for victim, _ in self.victims)
        return disturbed, sum(victim.lost_work_s for victim, _ in self.victims), len(self.victims)


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
                search.pod = self._hardest(request, option)
                bundles = Bundles(victims, self.ledger.later, search.pod)
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

    def _hardest(self, request: Request, option: int) -> PodKind:
        """The kind of pod of a gang of which the fewest would fit the empty nodes."""
        table = self.facts.table

        def fit_empty(pod: PodKind) -> int:
            span = table.flavors[pod.flavor]
            return int(fitting(table, pod, table.empty[span.start : span.stop]).sum())

        return min((pod for spot in request.shape.options[option].spots for pod in spot.pods), key=fit_empty)

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


@dataclass(slots=True, eq=False)
class Search:
    """The search for one gang in one of its options. `until`: when it is gone at the latest. `refused`: somebody who
    might have been asked at first could not be asked any more, once others had been. `pod`: which kind of its pods
    bundles are for."""

    ledger: Ledger
    promises: Promises
    victims: Victims
    request: Request
    option: int
    rights: Rights
    gang: Gang
    until: float
    bound: Bound
    refused: bool = False
    pod: PodKind | None = None
    _spent: set[tuple[int, tuple[int, ...]]] = field(
        default_factory=set
    )  # queues and cells that are at their guarantee

    def freed(self, asked: Iterable[Bundle], region: BoolArray) -> Freed | None:
        """Ask one bundle after the other until the gang fits, then let off whoever is not needed after all.

        Leaves its changes in the ledger, for the trial around it to undo.
        """
        chosen: Chosen = {}
        self._spent.clear()
        place = self._place()
        for bundle in asked:
            if place is not None:
                break
            if self._ask(bundle, region, chosen):
                place = self._place()
        if place is None:
            return None
        for uid, (victim, reason) in reversed(list(chosen.items())):
            self._reinstate(victim)
            without = self._place()
            if without is not None:
                place = without
                del chosen[uid]
                continue
            least = self._least_shed(victim, region)
            if least is not None:
                victim, place = least
                chosen[uid] = victim, reason
            self._dismiss(victim)
        return Freed(self.option, place, tuple(chosen.values())) if chosen else None

    def _ask(self, bundle: Bundle, region: BoolArray, chosen: Chosen) -> bool:
        """Everybody in a bundle, or nobody; tell whether somebody was asked. A bundle that makes no room, beside what
        is promised to others, is not asked."""
        undo: list[tuple[str, tuple[Victim, Reason] | None]] = []
        room = self._room_on(bundle.row)
        for victim in bundle.members:
            helps = bool(region[victim.freed.load.rows].any())
            if not helps and self.ledger.staying.allows(self.request.queue, self.request.least[self.option]):
                continue
            uid, cells = victim.gang.uid, (victim.freed.queue, tuple(cell for cell, _ in victim.freed.amounts))
            before = chosen.get(uid)
            if before is not None and not before[0].kept:
                continue  # it leaves already, for another node
            if before is None and cells in self._spent:
                return self._undo(undo, chosen)
            if victim.kept and victim.stay is not None:
                victim = self.victims.shrunk(victim.stay, region, None) or victim
            undo.append((uid, before))
            self._put(chosen, uid, None)
            reason = self.rights.over(victim)
            if reason is None:
                self.refused = True
                if len(undo) == 1:  # alone: nobody is reinstated whose room would count again
                    self._spent.add(cells)
                return self._undo(undo, chosen)
            self._put(chosen, uid, (victim, reason))
        if bundle.row is not None and self._room_on(bundle.row) <= room:
            return self._undo(undo, chosen)
        return bool(undo)

    def _undo(self, undo: Sequence[tuple[str, tuple[Victim, Reason] | None]], chosen: Chosen) -> bool:
        """Nobody of the bundle was asked."""
        for uid, before in reversed(undo):
            self._put(chosen, uid, before)
        return False

    def _room_on(self, row: int | None) -> int:
        """For how many pods there is room on a node once those asked so far have left."""
        if row is None or self.pod is None:
            return 0
        table, view = self.ledger.later.table, self.promises.view(self.bound, later=True)
        return int(view.node_counts(self.pod, np.array([row]), np.zeros((1, len(table.columns)), dtype=np.int64))[0])

    def _put(self, chosen: Chosen, uid: str, now: tuple[Victim, Reason] | None) -> None:
        """Let this be what becomes of a gang."""
        before = chosen.pop(uid, None)
        if before is not None:
            self._reinstate(before[0])
        if now is not None:
            self._dismiss(now[0])
            chosen[uid] = now

    def _least_shed(self, victim: Victim, region: BoolArray) -> tuple[Victim, Fit] | None:
        """The fewest pods that a gang has to shed, which is reinstated now. None: it has to do what it was asked."""
        if victim.stay is None:
            return None
        most = self.victims.shrunk(victim.stay, region, None)
        found = self._instead(most) if not victim.kept else None
        if most is None or (found is None and not victim.kept):
            return None
        running = victim.stay.running.placement
        for shed in range(1, sum(p.replicas for p in running) - sum(p.replicas for p in most.kept)):
            less = self._instead(self.victims.shrunk(victim.stay, region, shed))
            if less is not None:
                return less
        return found

    def _instead(self, victim: Victim | None) -> tuple[Victim, Fit] | None:
        """Whether it is enough that a gang, which is reinstated now, does this."""
        if victim is None:
            return None
        self._dismiss(victim)
        place = self._place()
        self._reinstate(victim)
        return None if place is None else (victim, place)

    def _place(self) -> Fit | None:
        """Where the gang would go if the victims so far were gone, beside what is promised to others."""
        request, option = self.request, self.request.shape.options[self.option]
        amounts = request.least[self.option]
        if not self.ledger.staying.allows(request.queue, amounts):
            return None
        view = self.promises.view(self.bound, later=True)
        place = fit(self.ledger.later.table, option, request.shape.least, view)
        if place is None:
            return None
        uid, now = self.gang.uid, self.victims.facts.snapshot.now
        taken = Departure(uid, self.until, now, tie_of(uid), place.load, request.queue, amounts)
        return place if self.promises.allow(taken) else None

    def _dismiss(self, victim: Victim) -> None:
        if victim.stay is None:
            self.ledger.give(victim.freed)
        else:
            self.ledger.dismiss(victim.freed)

    def _reinstate(self, victim: Victim) -> None:
        if victim.stay is None:
            self.ledger.take(victim.freed)
        else:
            self.ledger.reinstate(victim.freed)
