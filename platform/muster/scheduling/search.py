"""One search for victims: they are asked in order, in the ledger, until the gang fits; then the needless are let off.

Whoever shrinks gives no more than it has to, and whoever leaves shrinks instead where that is enough after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import Bound, Promises
from muster.scheduling.bundles import Bundle, Wanted
from muster.scheduling.departures import Departure, tie_of
from muster.scheduling.fit import Fit, fit
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray
from muster.scheduling.shape import Request
from muster.scheduling.victims import Reason, Rights, Victim, Victims

Chosen: TypeAlias = dict[str, tuple[Victim, Reason]]
"""Who leaves or shrinks, each with the right by which it is asked, by uid."""


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


@dataclass(slots=True, eq=False)
class Search:
    """The search for one gang in one of its options. `until`: when it is gone at the latest. `refused`: somebody who
    might have been asked at first could not be asked any more, once others had been."""

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
    _spent: set[tuple[int, tuple[int, ...]]] = field(
        default_factory=set
    )  # queues, and of what they are at their guarantee

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
        room = self._room_for(bundle.wanted)
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
        if bundle.wanted is not None and self._room_for(bundle.wanted) <= room:
            return self._undo(undo, chosen)
        return bool(undo)

    def _undo(self, undo: Sequence[tuple[str, tuple[Victim, Reason] | None]], chosen: Chosen) -> bool:
        """Nobody of the bundle was asked."""
        for uid, before in reversed(undo):
            self._put(chosen, uid, before)
        return False

    def _room_for(self, wanted: Wanted | None) -> int:
        """How many such pods fit the node once those asked so far have left."""
        if wanted is None:
            return 0
        view = self.promises.view(self.bound, later=True)
        nothing = np.zeros((1, len(self.ledger.later.table.columns)), dtype=np.int64)
        return int(view.node_counts(wanted.pod, np.array([wanted.row]), nothing)[0])

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
