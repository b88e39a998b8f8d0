"""The decisions of a plan while it is made. Each one updates the ledger and the backfill reservations at once, so that
the rest of the plan takes it into account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from muster.model import Admit, Decision, Evict, Gang, Nominate, Placement, Resize, RolePlacement
from muster.quota import CellAmounts
from muster.scheduling.backfill import BackfillReservations
from muster.scheduling.capacity import NodeUsage
from muster.scheduling.feasibility import UnschedulableReason
from muster.scheduling.fit import FlavorAssignment, GangAssignment
from muster.scheduling.flavor_assigner import Growth
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.ledger import Ledger
from muster.scheduling.nominations import ActiveNomination, join_names
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.preemption import PreemptionResult
from muster.scheduling.preemption_candidates import PreemptionCandidates, PreemptionReason, Victim
from muster.scheduling.releases import (
    ExpectedRelease,
    node_usage_of_placement,
    quota_of_placement,
    tiebreak_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedAdmission:
    """A gang that starts; `extra_pods` is its size above the minimum (see `GangRequest`)."""

    gang: Gang
    request: QueueRequest
    option: int
    extra_pods: int
    placement: Placement
    release: ExpectedRelease
    backfilled: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlannedNomination:
    """A nomination of this plan, and what is charged for it."""

    gang: Gang
    request: QueueRequest
    nomination: Nominate
    release: ExpectedRelease


@dataclass(slots=True)
class Decisions:
    """What has been decided so far."""

    cache: PlannerCache
    ledger: Ledger
    backfill: BackfillReservations
    candidates: PreemptionCandidates
    unschedulable: dict[str, UnschedulableReason] = field(default_factory=dict)
    admissions: dict[str, PlannedAdmission] = field(default_factory=dict)
    withdrawn: list[PlannedAdmission] = field(default_factory=list)  # admissions withdrawn in this plan, each gang once
    # uids of gangs that were nominated when the plan began, or that come before all others
    _preceding: set[str] = field(default_factory=set)
    nominations: dict[str, PlannedNomination] = field(default_factory=dict)  # of this plan, by uid
    _preemptions: list[Evict | Resize] = field(default_factory=list)
    _growths: list[Resize] = field(default_factory=list)

    def reserve_nomination(self, active: ActiveNomination) -> None:
        """Charge an existing nomination: its capacity is for its gang only."""
        self._preceding.add(active.gang.uid)
        self.candidates.nominations[active.gang.uid] = active
        self._allocate(active.release)

    def end_nomination(self, active: ActiveNomination) -> None:
        """End a nomination and free what it charged."""
        del self.candidates.nominations[active.gang.uid]
        self._free(active.release)

    def admit_nominated(self, active: ActiveNomination) -> None:
        """Admit a gang on its nominated placement, which must be valid and cover its minimum."""
        request, placement, release = active.request, active.nomination.placement, active.release
        assert active.option is not None
        extra_pods = sum(part.replicas for part in placement) - sum(request.gang_request.min_sizes)
        self._record_admission(
            active.gang, request, active.option, extra_pods, placement, release.node_usage, release.amounts
        )

    def admit(self, gang: Gang, request: QueueRequest, found: FlavorAssignment) -> None:
        placement, node_usage = self.to_placement(request, found.option, found.nodes), found.nodes.node_usage
        self._record_admission(gang, request, found.option, found.extra_pods, placement, node_usage, found.amounts)

    def change_size(self, start: PlannedAdmission, found: FlavorAssignment) -> None:
        """Change the size of an admission of this plan; the caller has deallocated its old placement."""
        placement = self.to_placement(start.request, found.option, found.nodes)
        release = replace(start.release, node_usage=found.nodes.node_usage, amounts=found.amounts)
        self._allocate(release)
        self.admissions[start.gang.uid] = replace(
            start, extra_pods=found.extra_pods, placement=placement, release=release
        )

    def withdraw(self, gang: Gang, result: PreemptionResult) -> Sequence[tuple[Victim, PreemptionReason]]:
        """Withdraw the admissions of victims that were to start in this plan; return the other victims."""
        others = []
        for victim, reason in result.victims:
            uid = victim.gang.uid
            start = self.admissions.get(uid)
            if start is None or start.release is not victim.freed:
                others.append((victim, reason))
                continue
            self._remove_admission(start)
            self.unschedulable[uid] = UnschedulableReason(
                "InsufficientResources", message=f"{gang.name} is ahead of it and needs the capacity"
            )
            if all(uid != earlier.gang.uid for earlier in self.withdrawn):
                self.withdrawn.append(start)
        return others

    def nominate(
        self,
        gang: Gang,
        request: QueueRequest,
        result: PreemptionResult,
        victims: Sequence[tuple[Victim, PreemptionReason]],
    ) -> None:
        """Nominate capacity for a gang and evict or shrink its victims."""
        wait_for: list[str] = []
        for victim, reason in victims:
            uid = victim.gang.uid
            if victim.gang_usage is None:
                wait_for += self._drop_nomination(uid)
            else:
                wait_for.append(uid)
                self._preempt(victim)
            self.candidates.preempting.add(uid)
            leaves = (
                Resize(uid, victim.remaining, gang.uid, reason) if victim.remaining else Evict(uid, gang.uid, reason)
            )
            self._preemptions.append(leaves)
        now = self.cache.snapshot.now
        expires_at = now + max(victim.gang.grace_s for victim, _ in victims) + gang.start_timeout_s
        placement = self.to_placement(request, result.option, result.assignment)
        nomination = Nominate(gang.uid, placement, tuple(dict.fromkeys(wait_for)), expires_at)
        amounts, node_usage = request.min_quota[result.option], result.assignment.node_usage
        release = ExpectedRelease.of(gang, expires_at, now, node_usage, request.queue, amounts)
        self._allocate(release)
        self.nominations[gang.uid] = PlannedNomination(gang, request, nomination, release)
        names = join_names([victim.gang.name for victim, _ in victims])
        self.unschedulable[gang.uid] = UnschedulableReason(
            "WaitingForPreemption", message=f"preempting for it; waiting for {names} to terminate"
        )

    def put_first(self, uid: str) -> None:
        """A gang comes before all others. If it is admitted, no other gang takes its place in this plan."""
        self._preceding.add(uid)

    def preceding(self, uid: str) -> bool:
        """Whether the gang was nominated when the plan began, or was put first: it comes before others of its queue."""
        return uid in self._preceding

    def hand_over(self, uid: str, gang: Gang) -> None:
        """Give the admission or nomination of a gang in this plan to an equal gang, with its victims. The caller says
        why the other one waits."""
        start = self.admissions.get(uid)
        if start is not None:
            self._remove_admission(start)
            self._add_admission(replace(start, gang=gang, release=_release_to(start.release, gang)))
            return
        planned = self.nominations.pop(uid)
        self._free(planned.release)
        later_s = gang.start_timeout_s - planned.gang.start_timeout_s
        release = _release_to(replace(planned.release, release_at=planned.release.release_at + later_s), gang)
        self._allocate(release)
        expires_at = planned.nomination.expires_at + later_s
        nomination = replace(planned.nomination, gang_uid=gang.uid, expires_at=expires_at)
        self.nominations[gang.uid] = replace(planned, gang=gang, nomination=nomination, release=release)
        self._preemptions = [
            replace(leaves, preemptor=gang.uid) if leaves.preemptor == uid else leaves for leaves in self._preemptions
        ]
        self.unschedulable[gang.uid] = self.unschedulable[uid]

    def grow(self, growth: Growth) -> None:
        """Resize a running gang to more pods."""
        self._allocate(growth.added)
        placement = self.to_placement(growth.request, growth.option, growth.assignment)
        self._growths.append(Resize(growth.added.uid, placement, None, "Grown"))

    def in_order(self) -> Iterator[Decision]:
        """The decisions in the order to apply them."""
        yield from (planned.nomination for planned in self.nominations.values())
        yield from self._preemptions
        for start in self.admissions.values():
            yield Admit(start.gang.uid, start.placement, start.backfilled)
        yield from self._growths

    def to_placement(self, request: QueueRequest, option: int, assignment: GangAssignment) -> Placement:
        """An assignment with node names."""
        nodes, gang_request = self.cache.table.nodes, request.gang_request
        parts = []
        for role, flavor, assigned in zip(
            gang_request.roles, gang_request.options[option].flavors, assignment.roles, strict=True
        ):
            pods = zip(assigned.rows.tolist(), assigned.counts.tolist(), strict=True)
            parts.append(RolePlacement(role.name, flavor, tuple((nodes[row].name, count) for row, count in pods)))
        return tuple(parts)

    def _record_admission(
        self,
        gang: Gang,
        request: QueueRequest,
        option: int,
        extra_pods: int,
        placement: Placement,
        node_usage: NodeUsage,
        amounts: CellAmounts,
    ) -> None:
        root, flavors = self.cache.tree.root(request.queue), request.gang_request.options[option].flavors
        behind = any(r.root == root and not r.flavors.isdisjoint(flavors) for r in self.backfill.reservations)
        now = self.cache.snapshot.now
        release = ExpectedRelease.of(gang, now, now, node_usage, request.queue, amounts)
        self._add_admission(PlannedAdmission(gang, request, option, extra_pods, placement, release, behind))

    def _add_admission(self, start: PlannedAdmission) -> None:
        self._allocate(start.release)
        if start.gang.uid not in self._preceding:
            self.candidates.add_admitted(start.gang, start.release)
        self.admissions[start.gang.uid] = start

    def _remove_admission(self, start: PlannedAdmission) -> None:
        del self.admissions[start.gang.uid], self.candidates.admitting[start.gang.uid]
        self._free(start.release)

    def _preempt(self, victim: Victim) -> None:
        """Mark what a running gang releases: all of it, or what shrinking frees."""
        gang_usage = victim.gang_usage
        assert gang_usage is not None
        assert gang_usage.release is not None
        self.ledger.mark_releasing(victim.freed)
        self.backfill.remove_release(gang_usage.release)
        if victim.remaining:
            node_usage = node_usage_of_placement(self.cache.table, victim.gang, victim.remaining)
            amounts = quota_of_placement(self.cache.tree, gang_usage.queue, victim.gang, victim.remaining)
            self.backfill.add_release(replace(gang_usage.release, node_usage=node_usage, amounts=amounts))

    def _drop_nomination(self, uid: str) -> list[str]:
        """Take the nomination of another gang; return its victims that are still running, which the new nomination
        waits for."""
        active = self.candidates.nominations[uid]
        self.end_nomination(active)
        if (
            uid in self.cache.pending and uid not in self.cache.infeasible
        ):  # otherwise it is in backoff, or infeasible anyway
            self.unschedulable[uid] = UnschedulableReason(
                "InsufficientResources", message="its nominated capacity went to a gang ahead of it"
            )
        return [victim for victim in active.nomination.victims if victim in self.cache.running]

    def _allocate(self, release: ExpectedRelease) -> None:
        self.ledger.allocate(release)
        self.backfill.add_release(release)

    def _free(self, release: ExpectedRelease) -> None:
        self.ledger.deallocate(release)
        self.backfill.remove_release(release)


def _release_to(release: ExpectedRelease, gang: Gang) -> ExpectedRelease:
    """The release of an equal gang in the same place."""
    return replace(release, uid=gang.uid, tiebreak=tiebreak_of(gang.uid))
