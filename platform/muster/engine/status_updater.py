"""Turns the planner's decisions into statuses, and keeps nominations consistent with their victims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal

from muster.api.spec import EvictionStatus, QueueingStatus
from muster.cluster import CreatePod, NodeView, PodView, RecordEvent
from muster.engine.status_writes import StatusUpdate, WritePriority
from muster.model import Admit, Decision, Evict, Nominate, Placement, Resize, Wait, WaitReason
from muster.state import JobEntry
from muster.state.projection import MaxGracePeriods
from muster.workload import transitions
from muster.workload.conditions import has_terminated, is_admitted, is_evicting
from muster.workload.observation import Observation
from muster.workload.observed import ObservedState
from muster.workload.placement import describe, placement_of, pod_slots, pods_of_placement, recorded_finished_pods
from muster.workload.planning import grace_period_s, is_one_of_several, namespace_of
from muster.workload.protocol import Workload
from muster.workload.reconcile import reconcile
from muster.workload.related import RelatedWorkloads
from muster.workload.timeouts import Timeouts

INADMISSIBLE_CODES: Final[frozenset[WaitReason]] = frozenset(
    {"QueueNotFound", "QueueNotAllowed", "QueueInactive", "PriorityTooHigh", "LargerThanQuota"}
)
"""Reasons for which a gang cannot start until an object is edited: its nomination is withdrawn. Not LargerThanCluster,
since capacity is retained for a gang whose node is about to come back."""

_MAX_MESSAGE = 1000

PLACEMENT_INVALIDATED = "PlacementInvalidated"
"""Reason of the eviction of a gang whose placement is invalid before its pods are bound."""


class StatusUpdater:
    """The status updates of one cycle. `jobs` is by uid."""

    def __init__(
        self,
        observed: ObservedState,
        jobs: Mapping[str, JobEntry],
        nodes: Mapping[str, NodeView],
        timeouts: Timeouts,
        max_grace_s: MaxGracePeriods,
        related: RelatedWorkloads,
    ) -> None:
        self._observed = observed
        self._jobs = jobs
        self._nodes = nodes
        self._timeouts = timeouts
        self._max_grace_s = max_grace_s
        self._related = related
        self._flavors = {flavor.metadata.name: flavor for flavor in observed.flavors}
        self._queues_deleting = {q.metadata.name for q in observed.queues if q.metadata.deletion_timestamp is not None}
        self.updates: dict[str, StatusUpdate] = {}
        self.wake_times: dict[str, float | None] = {}  # of the jobs processed in this cycle
        self.needs_another_cycle = False  # a gang is evicted or shrunk, or another may start: run another cycle at once

    def reconcile_job(self, uid: str) -> None:
        """Continue a job's lifecycle from its newest status."""
        update = self.updates.get(uid)
        workload = self._jobs[uid].workload if update is None else update.workload.with_status(update.status)
        observed = self._observed
        pods: tuple[PodView, ...] = observed.pods.get(uid, ())
        seen = Observation(
            now=observed.now,
            pods=pods,
            heartbeat=observed.heartbeats.get(uid),
            nodes=self._nodes,
            queue_deleted=workload.queue in self._queues_deleting,
            max_grace_s=self._max_grace_s[workload.queue],
            flavors=self._flavors,
            related=self._related,
        )
        result = reconcile(workload, seen, self._timeouts)
        self.wake_times[uid] = result.wake_at
        if has_terminated(result.status) and (not has_terminated(workload.status) or result.writes):
            self.needs_another_cycle |= is_one_of_several(uid) or bool(self._related.affected_by(workload))
        if workload.is_group and result.status is not workload.status:
            self.needs_another_cycle = True  # others of its gangs may be queued now
        if update is None and result.status is workload.status and not result.writes:
            return
        update = self._update(
            uid,
            WritePriority.LIFECYCLE
            if update is not None or result.writes
            else _write_priority(workload.status, result.status),
        )
        update.status = result.status
        events = [action for action in update.writes if isinstance(action, RecordEvent)]
        update.writes = [*events, *result.writes]

    def latest_status(self, uid: str) -> QueueingStatus | None:
        """A job's newest status; None if the job does not exist."""
        update = self.updates.get(uid)
        if update is not None:
            return update.status
        entry = self._jobs.get(uid)
        return None if entry is None else entry.workload.status

    def updated_jobs(self) -> dict[str, Workload]:
        """Jobs whose status is about to change, with the new status."""
        updates = self.updates.items()
        return {uid: update.workload.with_status(update.status) for uid, update in updates if update.changed}

    # ---- nominations of earlier cycles

    def sync_nominations(self, uids: Iterable[str]) -> None:
        """Update nominations and evictions of these jobs for victims that have terminated, and undo what a crash left
        incomplete.

        A victim that has terminated, or finished shrinking, is removed from the nomination's list. If one of them was
        never evicted, the nomination is dropped: it was written without everything that follows, so the planner decides
        again with the victims that are terminating already. How that victim was to be preempted, and whether it still
        may be, is not recorded. If that victim's eviction is refused, the other victims are not evicted for nothing:
        those of which no pod has been stopped stay where they are. Until that is known, in the first cycle of a leader
        for example, no pod of theirs is stopped before it is evicted.
        """
        uids = sorted(uids)
        protected = self._observed.paused.union(
            one.job_uid for one in self._observed.refused if one.change == "Eviction"
        )
        for uid in uids:
            status = self.latest_status(uid)
            if status is None or status.nomination is None or not status.nomination.victims:
                continue
            states = {victim: self._victim_state(victim) for victim in status.nomination.victims}
            if "not_evicted" in states.values():
                self._set_status(uid, transitions.clear_nomination(status), WritePriority.NOMINATION)
                victims = [one for one in uids if self._is_evicting_for(one, uid)]
                if any(state == "not_evicted" and victim in protected for victim, state in states.items()):
                    self._revoke_evictions(victims)
                for victim in self.updates.keys() & victims:
                    self.updates[victim].raise_priority(WritePriority.PREEMPTION)
                continue
            left = [victim for victim, state in states.items() if state == "evicting"]
            if left != status.nomination.victims:
                nomination = status.nomination.model_copy(update={"victims": left})
                self._set_status(uid, status.model_copy(update={"nomination": nomination}), WritePriority.NOMINATION)
        for uid in uids:
            self._clear_finished_shrink(uid)

    def _victim_state(self, victim: str) -> Literal["released", "evicting", "not_evicted"]:
        """Whether a victim is released, evicting, or was not evicted yet.

        Released: not admitted, removed, being deleted, or finished shrinking; its pods may still be terminating.
        Evicting: its pods terminate, for any reason, or it shrinks. A victim that was released and
        was admitted again since counts as not evicted.
        """
        status = self.latest_status(victim)
        if (
            status is None
            or not is_admitted(status)
            or self._jobs[victim].workload.metadata.deletion_timestamp is not None
        ):
            return "released"
        if is_evicting(status):
            return "evicting"
        if status.eviction is None:
            return "not_evicted"
        return "evicting" if self._has_stale_pods(victim, status) else "released"

    def _is_evicting_for(self, uid: str, beneficiary: str) -> bool:
        status = self.latest_status(uid)
        eviction = None if status is None or not is_evicting(status) else status.eviction
        return eviction is not None and eviction.beneficiary == beneficiary

    def _revoke_evictions(self, victims: Iterable[str]) -> None:
        """End the evictions of these victims for a job that cannot start without another one. Not of a victim without
        one of its pods: that capacity may be assigned to another gang."""
        for uid in victims:
            status = self.latest_status(uid)
            if status is None:
                continue
            pods = pods_of_placement(status, self._observed.pods.get(uid, ()))
            left = recorded_finished_pods(status) | {(pod.role, pod.index) for pod in pods if not pod.deleting}
            complete = all((slot.role, slot.index) in left for slot in pod_slots(status.placement))
            if complete:
                status = transitions.revoke_eviction(status, self._observed.now)
                self._set_status(uid, status, WritePriority.LIFECYCLE)
                self.reconcile_job(uid)

    def _clear_finished_shrink(self, uid: str) -> None:
        """Clear the eviction of a shrunk gang once the nomination it shrank for no longer waits for it."""
        status = self.latest_status(uid)
        if status is None or status.eviction is None or is_evicting(status) or self._has_stale_pods(uid, status):
            return
        preemptor = self.latest_status(status.eviction.beneficiary)
        nomination = None if preemptor is None else preemptor.nomination
        if nomination is None or uid not in nomination.victims:
            self._set_status(uid, status.model_copy(update={"eviction": None}), WritePriority.LIFECYCLE)

    def _has_stale_pods(self, uid: str, status: QueueingStatus) -> bool:
        return any(pod.attempt != status.attempt for pod in self._observed.pods.get(uid, ()))

    # ---- the planner's decisions

    def apply_decisions(self, decisions: Iterable[Decision]) -> None:
        """Write what was decided; `Wait` is not handled here (see `wait_status`)."""
        for decision in decisions:
            if isinstance(decision, Admit):
                self._admit(decision)
            elif isinstance(decision, Nominate):
                self._nominate(decision)
            elif isinstance(decision, Evict):
                self._evict(decision.gang_uid, decision.preemptor, decision.reason)
            elif isinstance(decision, Resize):
                self._resize(decision)

    def _admit(self, decision: Admit) -> None:
        uid, now = decision.gang_uid, self._observed.now
        if is_admitted(self._jobs[uid].workload.status):
            # It releases capacity in this cycle. One write for both would be in the phase of the gang that gets this
            # capacity, which would be assigned twice; so the release is written now, the admission in the next cycle.
            self.needs_another_cycle = True
            return
        if uid not in self.updates:
            self.reconcile_job(uid)  # it arrived in an earlier cycle, which may not be written yet
        update = self._update(uid, WritePriority.ADMISSION)
        waited = now - transitions.waiting_since(update.status, now)
        update.status = transitions.admit(
            update.status, decision.placement, now, self._jobs[uid].workload.max_runtime_s
        )
        self._record_event(uid, "Admitted", f"{describe(update.status.placement)}, after {waited:.0f} s in the queue")
        self.reconcile_job(uid)

    def _nominate(self, decision: Nominate) -> None:
        uid = decision.gang_uid
        update = self._update(uid, WritePriority.NOMINATION)
        before = update.workload.status.nomination
        update.status = transitions.nominate(update.status, decision, before, self._observed.now)
        victims = ", ".join(self._job_name(victim) for victim in decision.victims)
        if victims and update.status.nomination != before:
            self._record_event(uid, "Nominated", f"capacity nominated; waiting for {victims} to terminate")
        self.needs_another_cycle = True

    def _evict(self, uid: str, preemptor: str, reason: str) -> None:
        """Evict a gang; one that only has a nomination loses it."""
        update = self._update(uid, WritePriority.PREEMPTION)
        if not is_admitted(update.status):
            update.status = transitions.clear_nomination(update.status)
            self._record_event(
                uid, "NominationLost", f"nomination lost to {self._job_name(preemptor)}, which is ahead of it"
            )
            self.needs_another_cycle = True
            return
        message = f"{reason.lower()} for {self._job_name(preemptor)}"
        eviction = self._eviction_status(update.workload, preemptor, reason)
        now = self._observed.now
        status = transitions.record_eviction(update.status, update.workload.queue, eviction.queue, now)
        update.status = transitions.evict(status, reason, message, now, eviction=eviction)
        self._record_event(uid, reason, message, preemptor=preemptor)
        self._continue(uid)

    def _resize(self, decision: Resize) -> None:
        uid, preemptor = decision.gang_uid, decision.preemptor
        priority = WritePriority.ADMISSION if preemptor is None else WritePriority.PREEMPTION
        update = self._update(uid, priority)
        eviction = None if preemptor is None else self._eviction_status(update.workload, preemptor, decision.reason)
        update.status = status = transitions.resize(
            update.status, decision.placement, decision.reason, self._observed.now, eviction=eviction
        )
        why = "free capacity" if preemptor is None else f"{decision.reason.lower()} for {self._job_name(preemptor)}"
        self._record_event(uid, "Resized", f"restarts with {describe(status.placement)}: {why}", preemptor=preemptor)
        self._continue(uid)

    def revoke_nominations(self, waits: Iterable[Wait]) -> None:
        """Withdraw the nominations of inadmissible gangs, and of those whose admission is refused."""
        invalid = {one.job_uid for one in self._observed.refused if one.invalid}
        for wait in waits:
            refused = wait.reason == "StatusWriteFailed" and wait.gang_uid in invalid
            inadmissible = wait.reason in INADMISSIBLE_CODES or refused
            status = self.latest_status(wait.gang_uid) if inadmissible else None
            if status is not None and status.nomination is not None:
                self._set_status(wait.gang_uid, transitions.clear_nomination(status), WritePriority.LIFECYCLE)
                self._record_event(wait.gang_uid, "NominationLost", f"nomination withdrawn: {wait.message}")
                self.needs_another_cycle = True

    def with_refused_evictions(self, waits: dict[str, Wait]) -> None:
        """Add to why gangs wait which jobs could not be evicted for them."""
        for one in self._observed.refused:
            wait = waits.get(one.beneficiary)
            if wait is not None and one.change == "Eviction" and wait.reason != "WaitingForPreemption":
                message = f"{wait.message}; {self._job_name(one.job_uid)} cannot be evicted: {one.message}"
                waits[one.beneficiary] = replace(wait, message=message[:_MAX_MESSAGE])

    # ---- placements that were written in an earlier cycle

    def unbound_placements(self, uids: Iterable[str]) -> dict[str, Placement]:
        """For those of these gangs that were admitted in an earlier cycle: the part of the placement whose pods are
        created in this cycle, or that kube-scheduler could not bind. A gang that is resized in this cycle is left out:
        its placement was just decided."""
        found: dict[str, Placement] = {}
        for uid in uids:
            update = self.updates.get(uid)
            before = self._jobs[uid].workload.status
            status = before if update is None else update.status
            if not is_admitted(before) or not is_admitted(status) or is_evicting(status):
                continue
            if update is not None and update.priority is not WritePriority.LIFECYCLE:
                continue
            pods = self._observed.pods.get(uid, ())
            current = (pod for pod in pods if pod.attempt == status.attempt and not pod.deleting)
            slots = {(pod.role, pod.index) for pod in current if pod.pending_reason == "Unschedulable"}
            for action in () if update is None else update.writes:
                if isinstance(action, CreatePod):
                    slots.add((action.role, action.index))
            if slots:
                found[uid] = placement_of(status.placement, slots)
        return found

    def evict_invalid(self, uid: str, reason: str) -> None:
        """Evict a gang whose placement is no longer valid; it waits for another."""
        update = self._update(uid, WritePriority.LIFECYCLE)
        update.status = transitions.evict(update.status, PLACEMENT_INVALIDATED, reason, self._observed.now)
        self._record_event(uid, PLACEMENT_INVALIDATED, f"placement is no longer valid: {reason}")
        self._continue(uid)

    # ---- status updates

    def _continue(self, uid: str) -> None:
        """Continue the lifecycle of a gang that gives capacity up; another cycle assigns it."""
        self.reconcile_job(uid)
        self.needs_another_cycle = True

    def _eviction_status(self, workload: Workload, preemptor: str, reason: str) -> EvictionStatus:
        deadline = self._observed.now + grace_period_s(workload, self._max_grace_s[workload.queue])
        queue = self._jobs[preemptor].workload.queue if preemptor in self._jobs else ""
        return EvictionStatus.model_construct(beneficiary=preemptor, queue=queue, reason=reason, deadline=deadline)

    def _update(self, uid: str, priority: WritePriority) -> StatusUpdate:
        update = self.updates.get(uid)
        if update is None:
            workload = self._jobs[uid].workload
            update = self.updates[uid] = StatusUpdate(workload, workload.status, priority)
        else:
            update.raise_priority(priority)
        return update

    def _set_status(self, uid: str, status: QueueingStatus, priority: WritePriority) -> None:
        self._update(uid, priority).status = status

    def set_wait_status(self, uid: str, status: QueueingStatus) -> None:
        """Set a status that only says why the job waits."""
        update = self.updates.get(uid)
        if update is None:
            workload = self._jobs[uid].workload
            update = self.updates[uid] = StatusUpdate(workload, workload.status, WritePriority.WAIT_STATUS)
        update.status = status

    def _record_event(self, uid: str, reason: str, message: str, *, preemptor: str | None = None) -> None:
        event = RecordEvent(uid, "Normal", reason, message, preemptor)
        self._update(uid, WritePriority.LIFECYCLE).writes.append(event)

    def _job_name(self, uid: str) -> str:
        entry = self._jobs.get(uid)
        if entry is None:
            return uid
        return f"{namespace_of(entry.workload)}/{entry.workload.metadata.name}"


def _write_priority(before: QueueingStatus, after: QueueingStatus) -> WritePriority:
    """The priority of a lifecycle change without any pod or event."""
    if _becomes_running(before, after):
        return WritePriority.PODS_READY
    arrives = before.submitted_at is None and after.phase == "Pending" and not after.conditions
    return WritePriority.WAIT_STATUS if arrives else WritePriority.LIFECYCLE


def _becomes_running(before: QueueingStatus, after: QueueingStatus) -> bool:
    """Whether the only change is that all pods of an admitted gang are ready now."""
    return before.phase == "Admitted" and after.phase == "Running" and before.placement is after.placement
