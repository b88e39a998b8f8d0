"""One search for victims: they are added in order, in the ledger, until the gang fits; then unnecessary ones are
removed. A gang shrinks by no more than needed, and shrinks instead of being evicted where that is enough."""

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
"""Gangs that are evicted or shrunk, each with the reason, by uid."""


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionResult:
    """A placement for one gang once its victims are gone, and the victims, each with the reason."""

    option: int
    assignment: GangAssignment
    victims: tuple[tuple[Victim, PreemptionReason], ...]

    @property
    def cost(self) -> tuple[int, float, int]:
        """Lower is better: highest priority of a victim, lost work, number of victims."""
        disturbed = max(victim.gang.priority for victim, _ in self.victims)
        return disturbed, sum(victim.lost_work_s for victim, _ in self.victims), len(self.victims)


@dataclass(slots=True, eq=False)
class PreemptionSearch:
    """The search for one gang in one of its options.

    `until`: the gang's latest release. `refused`: whether a candidate was no longer allowed after others had been
    added.
    """

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
    )  # queues, and the cells of which they are at their guarantee

    def find(self, groups: Iterable[CandidateGroup], region: BoolArray) -> PreemptionResult | None:
        """Add one group after the other until the gang fits, then remove victims that are not needed. Changes the
        ledger: the caller's trial undoes it."""
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
        """Add all of a group or none; return whether any was added. A group that frees no capacity, beside reservations
        of others, is not added."""
        undo: list[tuple[str, tuple[Victim, PreemptionReason] | None]] = []
        pods_before = self._pods_that_fit(group.target)
        for victim in group.members:
            helps = bool(region[victim.freed.node_usage.rows].any())
            if not helps and self.ledger.usage_later.fits(self.request.queue, self.request.min_quota[self.option]):
                continue
            uid, cells = victim.gang.uid, (victim.freed.queue, tuple(cell for cell, _ in victim.freed.amounts))
            before = chosen.get(uid)
            if before is not None and not before[0].remaining:
                continue  # it is a victim already, for another node
            if before is None and cells in self._exhausted:
                return self._restore(undo, chosen)
            if victim.remaining and victim.gang_usage is not None:
                victim = self.candidates.shrink(victim.gang_usage, region, None) or victim
            undo.append((uid, before))
            self._set_victim(chosen, uid, None)
            reason = self.rights.reason_for(victim)
            if reason is None:
                self.guarantee_reached = True
                if len(undo) == 1:  # a single victim: nothing to restore
                    self._exhausted.add(cells)
                return self._restore(undo, chosen)
            self._set_victim(chosen, uid, (victim, reason))
        if group.target is not None and self._pods_that_fit(group.target) <= pods_before:
            return self._restore(undo, chosen)
        return bool(undo)

    def _restore(
        self, undo: Sequence[tuple[str, tuple[Victim, PreemptionReason] | None]], chosen: ChosenVictims
    ) -> bool:
        """Undo a group."""
        for uid, before in reversed(undo):
            self._set_victim(chosen, uid, before)
        return False

    def _pods_that_fit(self, target: TargetNode | None) -> int:
        """How many such pods fit the node once the victims so far are gone."""
        if target is None:
            return 0
        view = self.backfill.free_capacity(self.reservations, later=True)
        nothing = np.zeros((1, len(self.ledger.free_later.table.columns)), dtype=np.int64)
        return int(view.node_counts(target.pod, np.array([target.row]), nothing)[0])

    def _set_victim(self, chosen: ChosenVictims, uid: str, now: tuple[Victim, PreemptionReason] | None) -> None:
        """Record what happens to a gang."""
        before = chosen.pop(uid, None)
        if before is not None:
            self._unmark_releasing(before[0])
        if now is not None:
            self._mark_releasing(now[0])
            chosen[uid] = now

    def _smallest_shrink(self, victim: Victim, region: BoolArray) -> tuple[Victim, GangAssignment] | None:
        """The fewest pods that a gang, which is restored now, has to shed. None: the victim stays as it is."""
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
        """Whether this is enough, for a gang that is restored now."""
        if victim is None:
            return None
        self._mark_releasing(victim)
        place = self._fit()
        self._unmark_releasing(victim)
        return None if place is None else (victim, place)

    def _fit(self) -> GangAssignment | None:
        """Where the gang would be placed without the victims so far, beside reservations of others."""
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
