"""What became of the work of an attempt that was stopped before its end: evicted, suspended or resized. Was a
checkpoint saved, when, and if not, how much work was lost.

Where its ranks were is added by the cluster, which can read what their launchers saved.
"""

from __future__ import annotations

from muster.api.spec import StopStatus, TrainingJob, TrainingJobStatus
from muster.text import format_duration
from muster.workload.conditions import (
    COMPLETE,
    EVICTED,
    SUSPENDED,
    find_condition,
    is_condition_true,
    is_evicting,
    with_status_fields,
)
from muster.workload.observation import Observation
from muster.workload.protocol import Transition, TransitionEvent

SAVED = "CheckpointSaved"
NOT_SAVED = "CheckpointNotSaved"
_TOLERANCE_S = 1.0
"""A checkpoint that was completed so shortly before the stop counts as saved: no work is lost."""


def record_stop(job: TrainingJob, status: TrainingJobStatus, observation: Observation) -> Transition:
    """Record a stop when it begins, and its outcome, with an Event, once no pod of the attempt is left."""
    is_complete = is_condition_true(status, COMPLETE)  # within the grace period: nothing is lost
    stop = None if is_complete else _begun(job, status, observation)
    stop = stop or status.last_stop
    if stop is None or stop.ended_at is not None:
        return Transition(status)
    if is_complete or _was_revoked(status, stop):
        return Transition(with_status_fields(status, {"last_stop": None}))
    event: TransitionEvent | None = None
    if not any(pod.attempt == stop.attempt and pod.holds_capacity for pod in observation.pods):
        stop = _ended(stop, status, observation.now)
        if stop.saved or observation.heartbeat is not None or stop.ranks:
            event = (
                ("Normal", SAVED, describe_stop(stop)) if stop.saved else ("Warning", NOT_SAVED, describe_stop(stop))
            )
    return Transition(with_status_fields(status, {"last_stop": stop}) if stop != status.last_stop else status, event)


def is_stopped(status: TrainingJobStatus, attempt: int) -> bool:
    """Whether this attempt is being stopped, or was the last one that was stopped."""
    stop = status.last_stop
    return (stop is not None and stop.attempt == attempt) or (is_evicting(status) and status.attempt == attempt)


def describe_stop(stop: StopStatus) -> str:
    """`Preempted: checkpoint of step 120 saved after 4s`, or how much work was lost, and where the ranks were."""
    at_step = "" if stop.step is None else f" at step {stop.step}"
    of_step = "" if stop.checkpoint_step is None else f" of step {stop.checkpoint_step}"
    begin = f"attempt {stop.attempt} was stopped{at_step} ({stop.reason})"
    if stop.ended_at is None:
        return f"{begin}; its pods have not ended yet"
    if stop.saved and stop.checkpoint_at is not None:
        after = format_duration(max(0.0, stop.checkpoint_at - stop.at))
        return f"{begin}: a checkpoint{of_step} was saved after {after}"
    since = "its start" if stop.checkpoint_at is None else f"the checkpoint{of_step}"
    lost = f"{begin}: no checkpoint was saved, {format_duration(stop.lost_seconds)} of work since {since} are lost"
    return f"{lost}; when it was stopped, {stop.ranks}" if stop.ranks else lost


def _begun(job: TrainingJob, status: TrainingJobStatus, observation: Observation) -> StopStatus | None:
    """The stop that has begun and is not recorded yet."""
    before, last = job.status, status.last_stop
    evicted = find_condition(status if is_evicting(status) else before, EVICTED)
    attempt, started_at = before.attempt, before.started_at
    if evicted is not None and (is_evicting(status) or is_evicting(before)):
        reason, at = evicted.reason, evicted.last_transition_time
    elif is_condition_true(status, SUSPENDED) and not is_condition_true(before, SUSPENDED):
        reason, at = SUSPENDED, observation.now
    elif status.resized_at is not None and status.attempt > 0 and (last is None or last.at < status.resized_at):
        reason, at, attempt, started_at = "Resized", status.resized_at, status.attempt - 1, status.admitted_at
    else:
        return None
    if started_at is None or (last is not None and last.attempt >= attempt):
        return None
    heartbeat = observation.heartbeat
    is_own = heartbeat is not None and heartbeat.at >= started_at and heartbeat.has_stepped
    step = heartbeat.step if heartbeat is not None and is_own else None
    return StopStatus(attempt=attempt, reason=reason, at=at, started_at=started_at, step=step)


def _was_revoked(status: TrainingJobStatus, stop: StopStatus) -> bool:
    """Whether the eviction was withdrawn before a pod was stopped."""
    evicted = find_condition(status, EVICTED)
    return evicted is not None and evicted.reason == "EvictionRevoked" and status.attempt == stop.attempt


def _ended(stop: StopStatus, status: TrainingJobStatus, now: float) -> StopStatus:
    checkpoint = status.last_checkpoint
    saved = checkpoint is not None and checkpoint.at >= stop.at - _TOLERANCE_S
    since = stop.started_at if checkpoint is None else max(checkpoint.at, stop.started_at)
    return stop.model_copy(
        update={
            "ended_at": now,
            "saved": saved,
            "checkpoint_step": None if checkpoint is None else checkpoint.step,
            "checkpoint_at": None if checkpoint is None else checkpoint.at,
            "lost_seconds": 0 if saved else round(max(0.0, stop.at - since)),
            "ranks": "" if saved else stop.ranks,
        }
    )
