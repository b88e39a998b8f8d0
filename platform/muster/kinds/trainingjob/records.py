"""What a TrainingJob records beside queueing: its newest checkpoint, its progress, and its size for `kubectl scale`."""

from __future__ import annotations

from muster.api.spec import JOB_LABEL, ROLE_LABEL, CheckpointStatus, ProgressStatus, TrainingJob, TrainingJobStatus
from muster.cluster import Heartbeat
from muster.heartbeats.parse import MAX_CLOCK_SKEW_S
from muster.usage.goodput import runs_with
from muster.workload.conditions import is_admitted, is_finished, with_status_fields
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.timeouts import Timeouts


def record_checkpoint(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> tuple[TrainingJobStatus, float | None]:
    """Record the newest checkpoint with any other status change, and otherwise at most once a minute; at once when
    the job is evicted or ends, since it may not be observed again. Also returns when to record it otherwise.

    A checkpoint dated in the future, by a wrong clock, counts as of now and is recorded once; one recorded with a
    future date does not suppress later ones.
    """
    heartbeat, old, now = observation.heartbeat, status.last_checkpoint, observation.now
    if heartbeat is None or heartbeat.checkpoint_at is None:
        return status, None
    ahead = heartbeat.checkpoint_at > now + MAX_CLOCK_SKEW_S
    at = now if ahead else heartbeat.checkpoint_at
    if old is not None and old.at > now + MAX_CLOCK_SKEW_S:
        old = None
    if old is not None and (at <= old.at + 1e-3 or (ahead and heartbeat.checkpoint_step == old.step)):
        return status, None
    over = is_finished(status) or not is_admitted(status)
    due = 0.0 if old is None or over else old.at + timeouts.checkpoint_refresh_s
    if status is job.status and max(now, at) < due:
        return status, due
    checkpoint = CheckpointStatus(step=heartbeat.checkpoint_step, at=at)
    return with_status_fields(status, {"last_checkpoint": checkpoint}), None


def record_progress(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> tuple[TrainingJobStatus, float | None]:
    """Record the progress of the present attempt, if statuses are to have it: like a checkpoint, with any other
    change."""
    heartbeat, old, every_s = observation.heartbeat, status.progress, timeouts.progress_refresh_s
    started_at, attempt = job.status.started_at, job.status.attempt  # before what was decided just now
    if every_s is None or heartbeat is None or started_at is None or heartbeat.at < started_at:
        return status, None
    if heartbeat.checkpoint_at == heartbeat.at and heartbeat.checkpoint_step is None and not heartbeat.has_stepped:
        return status, None  # all that is known is that a program saved at a step which is unknown
    if is_finished(job.status) or (old is not None and (old.attempt, old.step) == (attempt, heartbeat.step)):
        return status, None
    due = 0.0 if old is None or old.at > observation.now + MAX_CLOCK_SKEW_S else old.at + every_s
    if status is job.status and max(observation.now, heartbeat.at) < due:
        return status, due
    progress = ProgressStatus(
        step=heartbeat.step,
        steps=heartbeat.total_steps,
        loss=heartbeat.loss,
        tokens_per_second=heartbeat.tokens_per_s,
        estimated_remaining_seconds=_remaining_s(heartbeat),
        collectives_per_step=heartbeat.collectives_per_step,
        collective_bytes_per_step=heartbeat.collective_bytes_per_step,
        attempt=attempt,
        at=heartbeat.at,
    )
    return with_status_fields(status, {"progress": progress}), None


def record_run_time(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> tuple[TrainingJobStatus, float | None]:
    """Record into what the records of the run divide the time of its pods, if statuses are to have it: like a
    checkpoint, with any other change, and at once when the job is evicted or ends."""
    known, every_s = job.status.time_spent, timeouts.progress_refresh_s
    new = None if observation.heartbeat is None else observation.heartbeat.run_time
    if every_s is None or known is None or new is None:
        return status, None
    last = known.runs[-1] if known.runs else None
    runs = runs_with(known.runs, new)
    if last is not None and [run.milliseconds for run in runs] == [run.milliseconds for run in known.runs]:
        return status, None
    over = is_finished(status) or not is_admitted(status)
    if last is not None and status is job.status and not over and new.last_step == last.last_step:
        return status, None
    due = 0.0 if last is None or over or last.at > observation.now + MAX_CLOCK_SKEW_S else last.at + every_s
    if status is job.status and max(observation.now, new.at) < due:
        return status, due
    return with_status_fields(status, {"time_spent": known.model_copy(update={"runs": runs})}), None


def _remaining_s(heartbeat: Heartbeat) -> float | None:
    """As reported, or by the time of a step."""
    steps, step_time_s = heartbeat.total_steps, heartbeat.step_time_s
    if heartbeat.eta_s is not None or steps is None or step_time_s is None:
        return heartbeat.eta_s
    return max(0, steps - heartbeat.step) * step_time_s


def record_scale(job: TrainingJob, status: TrainingJobStatus) -> TrainingJobStatus:
    """The size and pod selector of the one elastic role, for the scale subresource."""
    role = job.spec.elastic_role
    size = selector = None
    if role is not None:
        holds = is_admitted(status) and not is_finished(status)
        parts = from_status(status.placement) if holds else ()
        size = sum(part.replicas for part in parts if part.role == role.name)
        selector = f"{JOB_LABEL}={job.metadata.name},{ROLE_LABEL}={role.name}"
    if (size, selector) == (status.elastic_replicas, status.selector):
        return status
    return with_status_fields(status, {"elastic_replicas": size, "selector": selector})
