"""Reconciles one workload: from its status, its pods and the time to its new status and writes, in order.

Called whenever something about the workload changes, and at `wake_at`. It keeps no state, so it does not matter which
engine calls it, nor how often: a second call after everything was applied changes nothing, and a call after a crash
completes what was begun. Its kind says what its pods show, and what starts and stops them.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec import RolePlacementStatus
from muster.cluster import PodView, RecordEvent, RemoveJob, Write
from muster.workload import transitions
from muster.workload.conditions import (
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
from muster.workload.finished_pods import record_finished_pods
from muster.workload.observation import Observation, ReconcileResult, pods_left
from muster.workload.placement import without_nodes
from muster.workload.planning import grace_period_s, nomination_ttl_s
from muster.workload.protocol import RunState, RunWrites, Transition, Workload
from muster.workload.start_checks import check_start_conditions
from muster.workload.timeouts import Timeouts

_STOP_MARGIN_S = 30.0
"""A pod that has not ended this long after its grace period is named: its node or a finalizer keeps it."""
_AWAITED_S = 1.0
"""A job is removed once those that depend on it have recorded how it ended, which is looked at again after this."""
_LATE = "; after its grace period"
_GC_FINALIZERS = ("foregroundDeletion", "orphan")
"""Finalizers of Kubernetes itself, which it removes without delay once the pods are deleted."""


def reconcile(workload: Workload, observation: Observation, timeouts: Timeouts) -> ReconcileResult:
    """The workload's next status and writes."""
    return _Reconciler(workload, observation, timeouts).reconcile()


class _Reconciler:
    """The result while it is computed: the status so far, the writes, the times to reconcile again."""

    def __init__(self, workload: Workload, observation: Observation, timeouts: Timeouts) -> None:
        self.workload = workload
        self.observation = observation
        self.timeouts = timeouts
        self.status = workload.status
        self.run_writes: list[Write] = []
        self.events: list[RecordEvent] = []
        self.final_writes: list[Write] = []
        self.wake_times: list[float] = []

    def reconcile(self) -> ReconcileResult:
        self._initialize_status()
        if self.workload.metadata.deletion_timestamp is not None:
            self._handle_deletion()
        else:
            shown = self._observe()
            if shown is not None and shown.finished is not None:
                self._apply_transition(shown.finished)
            self._apply_requests()
            if not (is_admitted(self.status) or is_finished(self.status)):
                self._apply_transition(check_start_conditions(self.workload, self.status, self.observation))
            if shown is not None and is_admitted(self.status) and not is_finished(self.status):
                self._apply_transition(shown.next)
            if is_finished(self.status):
                self._clean_up_finished()
            elif is_evicting(self.status):
                self._tear_down()
            elif is_admitted(self.status):
                self._add(self.workload.start(self.status, self.observation, self.timeouts))
            else:
                self._wait_in_queue()
        self._update_terminating()
        self._apply_transition(self.workload.record(self.status, self.observation, self.timeouts))
        wake_at = min((at for at in self.wake_times if at > self.observation.now), default=None)
        return ReconcileResult(self.status, (*self.run_writes, *self.events, *self.final_writes), wake_at)

    # ---- the steps of the lifecycle, in order

    def _initialize_status(self) -> None:
        fields: dict[str, object] = {}
        if self.status.submitted_at is None:
            created = self.workload.metadata.creation_timestamp
            fields["submitted_at"] = self.observation.now if created is None else created
        if self.status.observed_generation != self.workload.metadata.generation:
            fields["observed_generation"] = self.workload.metadata.generation
        if fields:
            self.status = with_status_fields(self.status, fields)

    def _handle_deletion(self) -> None:
        self.status = transitions.clear_nomination(self.status)
        self._stop(self.observation.pods)
        if not self.observation.pods and not self.workload.active_gangs:
            self._finish_deleted()
            self.final_writes.append(RemoveJob(self.workload.key))

    def _finish_deleted(self) -> None:
        """Finish a deleted job that finalizers keep in the cluster after its pods are deleted."""
        now = self.observation.now
        finalizers = [one for one in self.workload.metadata.finalizers if one not in _GC_FINALIZERS]
        if not finalizers:
            return
        if not is_finished(self.status):
            message = f"deleted; the object is kept by its finalizers: {', '.join(finalizers)}"
            self.status = transitions.finish(self.status, CANCELLED, "Deleted", message, now)
        if self.status.finished_at is None:
            self.status = with_status_fields(self.status, {"finished_at": now})

    def _observe(self) -> RunState | None:
        """What its pods show, while it is admitted. That it has finished counts before its user's requests: a user who
        cancels or suspends it cannot know yet that it has completed."""
        if not is_admitted(self.status) or is_finished(self.status):
            return None
        return self.workload.observe(self.status, self.observation, self.timeouts)

    def _apply_requests(self) -> None:
        now = self.observation.now
        if is_finished(self.status):
            return
        was_suspended = is_condition_true(self.status, SUSPENDED)
        if self.workload.is_cancelled:
            self.status = transitions.finish(self.status, CANCELLED, "Cancelled", "cancelled by the user", now)
            self._record_event("Normal", "Cancelled", "cancelled by the user")
        elif self.workload.is_suspended and not was_suspended:
            self.status = transitions.suspend(self.status, now)
            self._record_event("Normal", "Suspended", "resources released (spec.suspend=true)")
        elif not self.workload.is_suspended and was_suspended and self.observation.queue_deleted:
            message = (
                f"resumed while queue {self.workload.queue} is being deleted, which waits until its unfinished jobs end"
            )
            self.status = transitions.finish(self.status, FAILED, "QueueDeleted", message, now)
            self._record_event("Warning", "QueueDeleted", message)
        elif not self.workload.is_suspended and was_suspended:
            self.status = transitions.resume(self.status, now)
            self._record_event("Normal", "Resumed", "requeued")

    def _apply_transition(self, transition: Transition) -> None:
        self.status = transition.status
        self.wake_times.extend(transition.wake_times)
        if transition.event is not None:
            self._record_event(*transition.event)

    def _clean_up_finished(self) -> None:
        """Stop running pods; the job has terminated once none is left. Keep ended pods for their logs until the job is
        removed, but not what is remembered of pods that are gone."""
        active = self.workload.active_gangs or any(pod.holds_capacity for pod in self.observation.pods)
        self._stop([pod for pod in self.observation.pods if pod.holds_capacity or pod.tombstone])
        if not active and self.status.finished_at is None:
            self.status = with_status_fields(self.status, {"finished_at": self.observation.now})
        ttl, finished_at = self.workload.ttl_after_finished_s, self.status.finished_at
        if ttl is not None and finished_at is not None and not active:
            if self.observation.related.is_awaited(self.workload):
                self.wake_times.append(self.observation.now + _AWAITED_S)
            elif self.observation.now >= finished_at + ttl:
                self.final_writes.append(RemoveJob(self.workload.key))
            else:
                self.wake_times.append(finished_at + ttl)

    def _tear_down(self) -> None:
        self._apply_transition(record_finished_pods(self.workload.status, self.status, self.observation, self.timeouts))
        # The end of a pod that is gone counts until the last one has ended: together they may complete the job.
        self._stop([pod for pod in self.observation.pods if not (pod.tombstone and pod.attempt == self.status.attempt)])
        self._name_late_pods()
        if self.workload.creates_pods or any(pod.holds_capacity for pod in self.observation.pods):
            return  # others have ended; finalizers may keep them for any time
        now = self.observation.now
        self.status = transitions.requeue(
            self.status,
            now,
            self.timeouts,
            self._retained_capacity(),
            nomination_ttl_s(self.workload, self.observation.max_grace_s),
        )
        self._wait_in_queue()

    def _name_late_pods(self) -> None:
        """Say which pods of an evicted gang have not ended although their grace period is over."""
        evicted, active = find_condition(self.status, EVICTED), pods_left(self.observation.pods)
        if evicted is None:
            return
        message = evicted.message.partition(_LATE)[0]
        late = (
            evicted.last_transition_time + grace_period_s(self.workload, self.observation.max_grace_s) + _STOP_MARGIN_S
        )
        if active and self.observation.now >= late:
            message += f"{_LATE} {active} not ended"
        elif active:
            self.wake_times.append(late)
        self.status = set_condition(self.status, EVICTED, True, evicted.reason, message, self.observation.now)

    def _retained_capacity(self) -> list[RolePlacementStatus]:
        """What a gang retains while its lost nodes are replaced: its placement on nodes that are still good."""
        places = transitions.retained_placement(self.status, self.observation.now)
        if not self.workload.allows(places):
            return []
        names = {share.node for part in places for share in part.nodes}
        views = {name: self.observation.nodes.get(name) for name in names}
        good = {n for n, v in views.items() if v is not None and v.schedulable}
        return without_nodes(places, frozenset(names - good))

    def _wait_in_queue(self) -> None:
        self._stop(self.observation.pods)
        status, now = self.status, self.observation.now
        if status.nomination is not None:
            if not self.workload.allows(status.nomination.placement):
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
        late = since + grace_period_s(self.workload, self.observation.max_grace_s) + _STOP_MARGIN_S
        reason, message = "Stopping", "its pods are being stopped"
        if self.observation.now >= late:
            reason, message = "NotEnding", f"{active} not ended"
        else:
            self.wake_times.append(late)
        self.status = set_condition(self.status, TERMINATING, True, reason, message, self.observation.now)

    # ---- helpers of the steps

    def _stop(self, pods: Sequence[PodView]) -> None:
        self._add(self.workload.stop(pods, self.observation, self.timeouts))

    def _add(self, run: RunWrites) -> None:
        self.run_writes.extend(run.writes)
        self.wake_times.extend(run.wake_times)

    def _record_event(self, event_type: str, reason: str, message: str) -> None:
        self.events.append(
            RecordEvent(self.workload.key, "Normal" if event_type == "Normal" else "Warning", reason, message)
        )
