"""Reconciles one job: from the job, its pods and the time to its new status and writes, in order.

Called whenever something about the job changes, and at `wake_at`. It keeps no state, so it does not matter which engine
calls it, nor how often: a second call after everything was applied changes nothing, and a call after a crash completes
what was begun.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.spec import JOB_LABEL, ROLE_LABEL, CheckpointStatus, ProgressStatus, RolePlacementStatus, TrainingJob
from muster.cluster import CreatePod, DeletePod, PodView, RecordEvent, RemoveJob, Write
from muster.heartbeats.parse import MAX_CLOCK_SKEW_S
from muster.lifecycle import transitions
from muster.lifecycle.attempt import evaluate_attempt, evaluate_completion
from muster.lifecycle.attempt_context import Transition
from muster.lifecycle.conditions import (
    CANCELLED,
    EVICTED,
    FAILED,
    SUSPENDED,
    TERMINATING,
    find_condition,
    is_admitted,
    is_condition_true,
    is_evicting,
    is_finished,
    set_condition,
    with_status_fields,
)
from muster.lifecycle.failure import is_node_lost
from muster.lifecycle.observation import (
    Observation,
    ReconcileResult,
    Timeouts,
    max_grace_period_s,
    pods_left,
    role_grace_period_s,
)
from muster.lifecycle.placement import (
    PodSlot,
    from_status,
    matches_spec,
    newly_finished_pods,
    pod_name,
    pod_slots,
    pods_of_placement,
    recorded_finished_pods,
    to_finished_pods,
    without_nodes,
)
from muster.lifecycle.transitions import nomination_ttl_s, retained_placement

_STOP_MARGIN_S = 30.0
_LATE = "; after its grace period"
"""A pod that has not ended this long after its grace period is named: its node or a finalizer keeps it."""
_GC_FINALIZERS = ("foregroundDeletion", "orphan")
"""Finalizers of Kubernetes itself, which it removes without delay once the pods are deleted."""


def reconcile_job(job: TrainingJob, observation: Observation, timeouts: Timeouts) -> ReconcileResult:
    """The job's next status and writes."""
    return _JobReconciler(job, observation, timeouts).reconcile()


class _JobReconciler:
    """The result while it is computed: the status so far, the writes, the times to reconcile again."""

    def __init__(self, job: TrainingJob, observation: Observation, timeouts: Timeouts) -> None:
        self.job = job
        self.observation = observation
        self.timeouts = timeouts
        self.status = job.status
        self.pod_writes: list[Write] = []
        self.events: list[RecordEvent] = []
        self.final_writes: list[Write] = []
        self.wake_times: list[float] = []

    def reconcile(self) -> ReconcileResult:
        self._initialize_status()
        if self.job.metadata.deletion_timestamp is not None:
            self._handle_deletion()
        else:
            self._check_completion()
            self._apply_spec_requests()
            if is_admitted(self.status) and not is_finished(self.status):
                self._apply_transition(evaluate_attempt(self.job, self.status, self.observation, self.timeouts))
            if is_finished(self.status):
                self._clean_up_finished()
            elif is_evicting(self.status):
                self._tear_down()
            elif is_admitted(self.status):
                self._create_missing_pods()
            else:
                self._wait_in_queue()
        self._update_terminating()
        self._update_checkpoint()
        self._update_progress()
        self._update_finished_pods()
        self._update_scale()
        wake_at = min((at for at in self.wake_times if at > self.observation.now), default=None)
        return ReconcileResult(self.status, (*self.pod_writes, *self.events, *self.final_writes), wake_at)

    # ---- the steps of the lifecycle, in order

    def _initialize_status(self) -> None:
        fields: dict[str, object] = {}
        if self.status.submitted_at is None:
            created = self.job.metadata.creation_timestamp
            fields["submitted_at"] = self.observation.now if created is None else created
        if self.status.observed_generation != self.job.metadata.generation:
            fields["observed_generation"] = self.job.metadata.generation
        if fields:
            self.status = with_status_fields(self.status, fields)

    def _handle_deletion(self) -> None:
        self.status = transitions.clear_nomination(self.status)
        self._delete_pods(self.observation.pods)
        if not self.observation.pods:
            self._finish_deleted()
            self.final_writes.append(RemoveJob(self.job.metadata.uid))

    def _finish_deleted(self) -> None:
        """Finish a deleted job that finalizers keep in the cluster after its pods are deleted."""
        now = self.observation.now
        finalizers = [one for one in self.job.metadata.finalizers if one not in _GC_FINALIZERS]
        if not finalizers:
            return
        if not is_finished(self.status):
            message = f"deleted; the object is kept by its finalizers: {', '.join(finalizers)}"
            self.status = transitions.finish(self.status, CANCELLED, "Deleted", message, now)
        if self.status.finished_at is None:
            self.status = with_status_fields(self.status, {"finished_at": now})

    def _check_completion(self) -> None:
        """Before spec.cancel and spec.suspend: a user who sets them cannot know yet that the job has completed."""
        if is_admitted(self.status) and not is_finished(self.status):
            transition = evaluate_completion(self.job, self.status, self.observation, self.timeouts)
            if transition is not None:
                self._apply_transition(transition)

    def _apply_spec_requests(self) -> None:
        now = self.observation.now
        if is_finished(self.status):
            return
        if self.job.spec.cancel:
            self.status = transitions.finish(self.status, CANCELLED, "Cancelled", "cancelled by the user", now)
            self._record_event("Normal", "Cancelled", "cancelled by the user")
        elif self.job.spec.suspend and not is_condition_true(self.status, SUSPENDED):
            self.status = transitions.suspend(self.status, now)
            self._record_event("Normal", "Suspended", "resources released (spec.suspend=true)")
        elif not self.job.spec.suspend and is_condition_true(self.status, SUSPENDED) and self.observation.queue_deleted:
            message = (
                f"resumed while queue {self.job.spec.queue} is being deleted, which waits until its unfinished jobs end"
            )
            self.status = transitions.finish(self.status, FAILED, "QueueDeleted", message, now)
            self._record_event("Warning", "QueueDeleted", message)
        elif not self.job.spec.suspend and is_condition_true(self.status, SUSPENDED):
            self.status = transitions.resume(self.status, now)
            self._record_event("Normal", "Resumed", "requeued")

    def _apply_transition(self, transition: Transition) -> None:
        self.status = transition.status
        self.wake_times.extend(transition.wake_times)
        if transition.event is not None:
            self._record_event(*transition.event)

    def _clean_up_finished(self) -> None:
        """Stop running pods; the job has terminated once none is left. Keep ended pods for their logs until the job is
        removed."""
        active = [pod for pod in self.observation.pods if pod.holds_capacity]
        self._delete_pods(active)
        if not active and self.status.finished_at is None:
            self.status = with_status_fields(self.status, {"finished_at": self.observation.now})
        ttl, finished_at = self.job.spec.ttl_seconds_after_finished, self.status.finished_at
        if ttl is not None and finished_at is not None and not active:
            if self.observation.now >= finished_at + ttl:
                self.final_writes.append(RemoveJob(self.job.metadata.uid))
            else:
                self.wake_times.append(finished_at + ttl)

    def _tear_down(self) -> None:
        self._update_finished_pods()
        self._delete_pods(self.observation.pods)
        self._name_late_pods()
        if any(pod.holds_capacity for pod in self.observation.pods):
            return  # others have ended; finalizers may keep them for any time
        now = self.observation.now
        self.status = transitions.requeue(
            self.status,
            now,
            self.timeouts,
            self._retained_capacity(),
            nomination_ttl_s(self.job, self.observation.max_grace_s),
        )
        self._wait_in_queue()

    def _name_late_pods(self) -> None:
        """Say which pods of an evicted gang have not ended although their grace period is over."""
        evicted, active, now = (
            find_condition(self.status, EVICTED),
            pods_left(self.observation.pods),
            self.observation.now,
        )
        if evicted is None:
            return
        message = evicted.message.partition(_LATE)[0]
        late = (
            evicted.last_transition_time + max_grace_period_s(self.job, self.observation.max_grace_s) + _STOP_MARGIN_S
        )
        if active and now >= late:
            message += f"{_LATE} {active} not ended"
        elif active:
            self.wake_times.append(late)
        self.status = set_condition(self.status, EVICTED, True, evicted.reason, message, now)

    def _retained_capacity(self) -> list[RolePlacementStatus]:
        """What a gang retains while its lost nodes are replaced: its placement on nodes that are still good."""
        places = retained_placement(self.status, self.job.spec, self.observation.now)
        names = {share.node for part in places for share in part.nodes}
        views = {name: self.observation.nodes.get(name) for name in names}
        good = {n for n, v in views.items() if v is not None and v.schedulable}
        return without_nodes(places, frozenset(names - good))

    def _create_missing_pods(self) -> None:
        """Create missing pods of the present attempt, once no pod of older ones or outside its placement is left."""
        status, now = self.status, self.observation.now
        own = {pod.name for pod in pods_of_placement(status, self.observation.pods)}
        stale = [pod for pod in self.observation.pods if pod.name not in own]
        self._delete_pods(stale)
        if any(pod.holds_capacity for pod in stale):
            return
        if status.requeue_after is not None and now < status.requeue_after:
            self.wake_times.append(status.requeue_after)
            return
        have = recorded_finished_pods(status) | {(pod.role, pod.index) for pod in self.observation.pods}
        self.pod_writes.extend(
            self._create_pod(slot) for slot in pod_slots(status.placement) if (slot.role, slot.index) not in have
        )

    def _wait_in_queue(self) -> None:
        self._delete_pods(self.observation.pods)
        status, now = self.status, self.observation.now
        if status.nomination is not None:
            if not matches_spec(status.nomination.placement, self.job.spec):
                self.status = transitions.clear_nomination(status)
                self._record_event("Normal", "NominationLost", "nomination withdrawn: roles were edited")
            elif now >= status.nomination.expires_at:
                self.status = transitions.clear_nomination(status)
                self._record_event(
                    "Warning", "NominationExpired", "nomination withdrawn: it expired before the job could start"
                )
            else:
                self.wake_times.append(status.nomination.expires_at)
        if status.requeue_after is not None:
            self.wake_times.append(status.requeue_after)
        self.wake_times.extend(entry.until for entry in status.blamed_nodes)

    def _update_terminating(self) -> None:
        """Say that pods of a job that has ended or is suspended have not, also if it is resumed meanwhile; which, once
        their grace period is over."""
        before, active = find_condition(self.status, TERMINATING), pods_left(self.observation.pods)
        stopping = before is not None and before.status == "True"
        if not (stopping or is_finished(self.status) or is_condition_true(self.status, SUSPENDED)) or not active:
            if stopping:
                self.status = set_condition(self.status, TERMINATING, False, "Ended", "", self.observation.now)
            return
        since = before.last_transition_time if before is not None and stopping else self.observation.now
        late = since + max_grace_period_s(self.job, self.observation.max_grace_s) + _STOP_MARGIN_S
        reason, message = "Stopping", "its pods are being stopped"
        if self.observation.now >= late:
            reason, message = "NotEnding", f"{active} not ended"
        else:
            self.wake_times.append(late)
        self.status = set_condition(self.status, TERMINATING, True, reason, message, self.observation.now)

    def _update_checkpoint(self) -> None:
        """Record the newest checkpoint with any other status change, and otherwise at most once a minute; at once when
        the job is evicted or ends, since it may not be observed again.

        A checkpoint dated in the future, by a wrong clock, counts as of now and is recorded once; one recorded with a
        future date does not suppress later ones.
        """
        heartbeat, old, now = self.observation.heartbeat, self.status.last_checkpoint, self.observation.now
        if heartbeat is None or heartbeat.checkpoint_at is None or heartbeat.checkpoint_step is None:
            return
        ahead = heartbeat.checkpoint_at > now + MAX_CLOCK_SKEW_S
        at = now if ahead else heartbeat.checkpoint_at
        if old is not None and old.at > now + MAX_CLOCK_SKEW_S:
            old = None
        if old is not None and (at <= old.at + 1e-3 or (ahead and heartbeat.checkpoint_step == old.step)):
            return
        over = is_finished(self.status) or not is_admitted(self.status)
        due = 0.0 if old is None or over else old.at + self.timeouts.checkpoint_refresh_s
        if self.status is not self.job.status or max(now, at) >= due:
            checkpoint = CheckpointStatus(step=heartbeat.checkpoint_step, at=at)
            self.status = with_status_fields(self.status, {"last_checkpoint": checkpoint})
        else:
            self.wake_times.append(due)

    def _update_progress(self) -> None:
        """Record the progress of the present attempt, if statuses are to have it: like a checkpoint, with any other
        change."""
        heartbeat, old, every_s = self.observation.heartbeat, self.status.progress, self.timeouts.progress_refresh_s
        started_at, attempt = self.job.status.started_at, self.job.status.attempt  # before what was decided just now
        if every_s is None or heartbeat is None or started_at is None or heartbeat.at < started_at:
            return
        if is_finished(self.job.status) or (old is not None and (old.attempt, old.step) == (attempt, heartbeat.step)):
            return
        due = 0.0 if old is None or old.at > self.observation.now + MAX_CLOCK_SKEW_S else old.at + every_s
        if self.status is not self.job.status or max(self.observation.now, heartbeat.at) >= due:
            progress = ProgressStatus(
                step=heartbeat.step,
                steps=heartbeat.total_steps,
                loss=heartbeat.loss,
                tokens_per_second=heartbeat.tokens_per_s,
                collectives_per_step=heartbeat.collectives_per_step,
                collective_bytes_per_step=heartbeat.collective_bytes_per_step,
                attempt=attempt,
                at=heartbeat.at,
            )
            self.status = with_status_fields(self.status, {"progress": progress})
        else:
            self.wake_times.append(due)

    def _update_finished_pods(self) -> None:
        """Record which pods have completed while others run: with any other change, such as an eviction, and otherwise
        after a while, since most gangs end all at once and need one write only."""
        if not is_admitted(self.status) or is_finished(self.status) or is_evicting(self.job.status):
            return
        pods = newly_finished_pods(self.status, self.observation.pods)
        if not pods:
            return
        due = min(pod.finished_at or 0.0 for pod in pods) + self.timeouts.finished_pods_delay_s
        if self.status is not self.job.status or self.observation.now >= due:
            slots = recorded_finished_pods(self.status) | {(pod.role, pod.index) for pod in pods}
            self.status = with_status_fields(self.status, {"finished_pods": to_finished_pods(slots)})
        else:
            self.wake_times.append(due)

    def _update_scale(self) -> None:
        """The size and pod selector of the one elastic role, for the scale subresource."""
        role = self.job.spec.elastic_role
        size = selector = None
        if role is not None:
            holds = is_admitted(self.status) and not is_finished(self.status)
            parts = from_status(self.status.placement) if holds else ()
            size = sum(part.replicas for part in parts if part.role == role.name)
            selector = f"{JOB_LABEL}={self.job.metadata.name},{ROLE_LABEL}={role.name}"
        if (size, selector) != (self.status.elastic_replicas, self.status.selector):
            self.status = with_status_fields(self.status, {"elastic_replicas": size, "selector": selector})

    # ---- helpers of the steps

    def _create_pod(self, slot: PodSlot) -> CreatePod:
        meta, attempt = self.job.metadata, self.status.attempt
        return CreatePod(
            job_uid=meta.uid,
            name=pod_name(meta.name, meta.uid, slot.role, slot.index, attempt),
            role=slot.role,
            index=slot.index,
            replicas=slot.replicas,
            attempt=attempt,
            node=slot.node,
            flavor=slot.flavor,
            rank0_node=slot.rank0_node,
            grace_s=self._grace_period_s(slot.role),
        )

    def _delete_pods(self, pods: Iterable[PodView]) -> None:
        for pod in pods:
            node = self.observation.nodes.get(pod.node)
            if is_node_lost(node, self.observation.now, self.timeouts):
                self.pod_writes.append(DeletePod(pod.job_uid, pod.name, 0.0, force=True))
                continue
            if node is not None and node.not_ready_since is not None:
                self.wake_times.append(node.not_ready_since + self.timeouts.force_delete_after_s)
            grace_s = self._grace_period_s(pod.role)
            if not pod.deleting or (pod.grace_s is not None and pod.grace_s > max(1.0, grace_s)):  # 0 is written as 1
                self.pod_writes.append(DeletePod(pod.job_uid, pod.name, grace_s))

    def _grace_period_s(self, role: str) -> float:
        return role_grace_period_s(self.job, role, self.observation.max_grace_s)

    def _record_event(self, event_type: str, reason: str, message: str) -> None:
        self.events.append(
            RecordEvent(self.job.metadata.uid, "Normal" if event_type == "Normal" else "Warning", reason, message)
        )
