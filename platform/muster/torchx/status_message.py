"""The status of a job in one sentence (pure)."""

from __future__ import annotations

from datetime import datetime

from muster.lifecycle.conditions import ADMITTED, CANCELLED, COMPLETE, FAILED, PODS_READY, find_condition
from muster.spec import TrainingJob
from muster.text.sanitize import sanitize


def status_message(job: TrainingJob) -> str:
    """One sentence: queue position and reason while it waits, nodes while it runs, result at the end."""
    status = job.status
    if status.phase == "Pending":
        return f"waits in queue {job.spec.queue}{_queue_position(job)}{_admission_message(job)}{_estimated_start(job)}"
    if status.phase == "Suspended":
        return f"suspended; to resume it: muster resume {job.metadata.name}"
    if status.phase == "Admitted":
        return _condition_message(job, PODS_READY) or f"admitted to {_node_names(job)}; its pods are starting"
    if status.phase == "Running":
        again = f", attempt {status.attempt}" if status.attempt else ""
        return f"runs on {_node_names(job)}{again}"
    if status.phase == "Succeeded":
        return _condition_message(job, COMPLETE) or "succeeded"
    if status.phase == "Terminating":
        return f"stopping: {_condition_message(job, CANCELLED) or 'cancelled'}"
    if status.phase == "Cancelled":
        return _condition_message(job, CANCELLED) or "cancelled"
    return _condition_message(job, FAILED) or "failed"


def change_key(job: TrainingJob) -> tuple[object, ...] | None:
    """A message is reported once per value of this key: queue position, reason, start and restart, without the
    estimate, which changes with every cycle. None: nothing to report, as the job has no reason yet or is running."""
    status = job.status
    if status.phase in ("Pending", "Suspended") and (reason := _admission_message(job)):
        return (status.phase, status.attempt, status.queue_position, reason)
    if status.phase == "Admitted":
        return (status.phase, status.attempt, status_message(job))
    return None


def _queue_position(job: TrainingJob) -> str:
    position = job.status.queue_position
    if position is None:
        return ""
    return f", position {position}"


def _admission_message(job: TrainingJob) -> str:
    message = _condition_message(job, ADMITTED)
    return f": {message}" if message else ""


def _estimated_start(job: TrainingJob) -> str:
    start = job.status.estimated_start
    if start is None:
        return ""
    return f"; expected to start at {datetime.fromtimestamp(start):%H:%M:%S}"  # noqa: DTZ006  (the reader's own clock)


def _node_names(job: TrainingJob) -> str:
    names = sorted({share.node for part in job.status.placement for share in part.nodes})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more nodes" if len(names) > 4 else "")


def _condition_message(job: TrainingJob, kind: str) -> str:
    condition = find_condition(job.status, kind)
    return sanitize(condition.message) if condition is not None else ""
