"""One search for victims: they are asked in order, in the ledger, until the gang fits; then the needless are let off.

Whoever shrinks gives no more than it has to, and whoever leaves shrinks instead where that is enough after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import Gang
from muster.scheduling.backfill import BackfillReservations, ReservationIndexes
from muster.scheduling.candidate_groups import CandidateGroup, TargetNode
from muster.scheduling.fit import GangAssignment, fit
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray
from muster.scheduling.preemption_candidates import PreemptionCandidates, PreemptionReason, PreemptionRights, Victim
from muster.scheduling.releases import ExpectedRelease, tiebreak_of

ChosenVictims: TypeAlias = dict[str, tuple[Victim, PreemptionReason]]
"""Who leaves or shrinks, each with the right by which it is asked, by uid."""


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionResult:
    """Room for one gang once its victims have gone, each with the right by which it is asked."""

    option: int
    assignment: GangAssignment
    victims: tuple[tuple[Victim, PreemptionReason], ...]

    @property
    def cost(self) -> tuple[int, float, int]:
        """The lower the better: highest priority that is disturbed, lost work, number of victims."""
        disturbed = max(victim.gang.priority for victim, _ in self.victims)
        return disturbed, sum(victim.lost_work_s for victim, _ in self.victims), len(self.victims)


@dataclass(slots=True, eq=False)
class PreemptionSearch:
    """The search for one gang in one of its options. `until`: when it is gone at the latest. `refused`: somebody who
    might have been asked at first could not be asked any more, once others had been."""

    ledger: Ledger
    backfill: BackfillReservations
    candidates: PreemptionCandidates
    request: QueueRequest
    option: int
    rights: PreemptionRights
    gang: Gang
    release_at: float
    reservations: ReservationIndexes
    guarantee_reached: bool = False
    _exhausted: set[tuple[int, tuple[int, ...]]] = field(
        default_factory=set
    )  # queues, and of what they are at their guarantee

    def find(self, groups: Iterable[CandidateGroup], region: BoolArray) -> PreemptionResult | None:
        """Ask one bundle after the other until the gang fits, then let off whoever is not needed after all.

        Leaves its changes in the ledger, for the trial around it to undo.
        """
        chosen: ChosenVictims = {}
        self._exhausted.clear()
        place = self._fit()
        for bundle in groups:
            if place is not None:
                break
            if self._try_group(bundle, region, chosen):
                place = self._fit()
        if place is None:
            return None
        for uid, (victim, reason) in reversed(list(chosen.items())):
            self._unmark_releasing(victim)
            without = self._fit()
            if without is not None:
                place = without
                del chosen[uid]
                continue
            least = self._smallest_shrink(victim, region)
            if least is not None:
                victim, place = least
                chosen[uid] = victim, reason
            self._mark_releasing(victim)
        return PreemptionResult(self.option, place, tuple(chosen.values())) if chosen else None

    def _try_group(self, group: CandidateGroup, region: BoolArray, chosen: ChosenVictims) -> bool:
        """Everybody in a bundle, or nobody; tell whether somebody was asked. A bundle that makes no room, beside what
        is promised to others, is not asked."""
        undo: list[tuple[str, tuple[Victim, PreemptionReason] | None]] = []
        room = self._pods_that_fit(group.target)
        for victim in group.members:
            helps = bool(region[victim.freed.node_usage.rows].any())
            if not helps and self.ledger.usage_later.fits(self.request.queue, self.request.min_quota[self.option]):
                continue
            uid, cells = victim.gang.uid, (victim.freed.queue, tuple(cell for cell, _ in victim.freed.amounts))
            before = chosen.get(uid)
            if before is not None and not before[0].remaining:
                continue  # it leaves already, for another node
            if before is None and cells in self._exhausted:
                return self._restore(undo, chosen)
            if victim.remaining and victim.gang_usage is not None:
                victim = self.candidates.shrink(victim.gang_usage, region, None) or victim
            undo.append((uid, before))
            self._set_victim(chosen, uid, None)
            reason = self.rights.reason_for(victim)
            if reason is None:
                self.guarantee_reached = True
                if len(undo) == 1:  # alone: nobody is reinstated whose room would count again
                    self._exhausted.add(cells)
                return self._restore(undo, chosen)
            self._set_victim(chosen, uid, (victim, reason))
        if group.target is not None and self._pods_that_fit(group.target) <= room:
            return self._restore(undo, chosen)
        return bool(undo)

    def _restore(
        self, undo: Sequence[tuple[str, tuple[Victim, PreemptionReason] | None]], chosen: ChosenVictims
    ) -> bool:
        """Nobody of the bundle was asked."""
        for uid, before in reversed(undo):
            self._set_victim(chosen, uid, before)
        return False

    def _pods_that_fit(self, target: TargetNode | None) -> int:
        """How many such pods fit the node once those asked so far have left."""
        if target is None:
            return 0
        view = self.backfill.free_capacity(self.reservations, later=True)
        nothing = np.zeros((1, len(self.ledger.free_later.table.columns)), dtype=np.int64)
        return int(view.node_counts(target.pod, np.array([target.row]), nothing)[0])

    def _set_victim(self, chosen: ChosenVictims, uid: str, now: tuple[Victim, PreemptionReason] | None) -> None:
        """Let this be what becomes of a gang."""
        before = chosen.pop(uid, None)
        if before is not None:
            self._unmark_releasing(before[0])
        if now is not None:
            self._mark_releasing(now[0])
            chosen[uid] = now

    def _smallest_shrink(self, victim: Victim, region: BoolArray) -> tuple[Victim, GangAssignment] | None:
        """The fewest pods that a gang has to shed, which is reinstated now. None: it has to do what it was asked."""
        if victim.gang_usage is None:
            return None
        most = self.candidates.shrink(victim.gang_usage, region, None)
        found = self._fits_with(most) if not victim.remaining else None
        if most is None or (found is None and not victim.remaining):
            return None
        running = victim.gang_usage.running.placement
        for shed in range(1, sum(p.replicas for p in running) - sum(p.replicas for p in most.remaining)):
            less = self._fits_with(self.candidates.shrink(victim.gang_usage, region, shed))
            if less is not None:
                return less
        return found

    def _fits_with(self, victim: Victim | None) -> tuple[Victim, GangAssignment] | None:
        """Whether it is enough that a gang, which is reinstated now, does this."""
        if victim is None:
            return None
        self._mark_releasing(victim)
        place = self._fit()
        self._unmark_releasing(victim)
        return None if place is None else (victim, place)

    def _fit(self) -> GangAssignment | None:
        """Where the gang would go if the victims so far were gone, beside what is promised to others."""
        request, option = self.request, self.request.gang_request.options[self.option]
        amounts = request.min_quota[self.option]
        if not self.ledger.usage_later.fits(request.queue, amounts):
            return None
        view = self.backfill.free_capacity(self.reservations, later=True)
        place = fit(self.ledger.free_later.table, option, request.gang_request.min_sizes, view)
        if place is None:
            return None
        uid, now = self.gang.uid, self.candidates.cache.snapshot.now
        taken = ExpectedRelease(uid, self.release_at, now, tiebreak_of(uid), place.node_usage, request.queue, amounts)
        return place if self.backfill.fits_quota(taken) else None

    def _mark_releasing(self, victim: Victim) -> None:
        if victim.gang_usage is None:
            self.ledger.deallocate(victim.freed)
        else:
            self.ledger.mark_releasing(victim.freed)

    def _unmark_releasing(self, victim: Victim) -> None:
        if victim.gang_usage is None:
            self.ledger.allocate(victim.freed)
        else:
            self.ledger.unmark_releasing(victim.freed)
