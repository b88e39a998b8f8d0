"""Jobs of any kind as answers and tables have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from muster.api import spec
from muster.kinds.trainingjob.failure_log import last_log_line
from muster.usage.time_spent import recorded_time
from muster.visibility.types import ItemMeta, JobSummary, PendingJob
from muster.workload.conditions import explain_phase, last_eviction
from muster.workload.placement import nodes_of

_MAX_ERROR = 300  # characters


@dataclass(frozen=True, slots=True)
class ReadableJob:
    """A job of any kind as answers have it. `training_job`: it, if it is one."""

    kind: str
    metadata: spec.ObjectMeta
    status: spec.QueueingStatus
    queue: str
    priority: int | None
    min_pods: int
    max_pods: int
    training_job: spec.TrainingJob | None = None


def job_key(job: ReadableJob | spec.TrainingJob) -> tuple[str, str]:
    """(namespace, name)."""
    return job.metadata.namespace or "default", job.metadata.name


def readable_job(job: spec.TrainingJob) -> ReadableJob:
    """A TrainingJob as answers have it."""
    priority = job.spec.priority if job.spec.priority_class_name is None else job.status.priority
    least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
    most = sum(job.spec.max_replicas(role) for role in job.spec.roles)
    return ReadableJob(job.kind, job.metadata, job.status, job.spec.queue, priority, least, most, job)


def job_summary(job: ReadableJob, *, complete: bool = False) -> JobSummary:
    """A job with its live status; `complete`: with conditions, placement and last failure."""
    status = job.status
    reason, message = explain_phase(status)
    details: dict[str, Any] = {}
    if complete:
        spent = recorded_time(job.metadata, status)
        details = {"conditions": status.conditions, "placement": status.placement, "time_spent": spent}
    if isinstance(status, spec.TrainingJobStatus):
        details["progress"] = status.progress
        if complete:
            details |= {"last_failure": status.last_failure, "last_stop": status.last_stop}
        if status.phase == "Failed":
            details["error"] = last_log_line(status.last_failure)[:_MAX_ERROR]
    return JobSummary(
        metadata=job_meta(job),
        object_kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        phase=status.phase,
        reason=reason,
        message=message,
        position=status.queue_position,
        estimated_start=status.estimated_start,
        min_pods=job.min_pods,
        max_pods=job.max_pods,
        pods_wanted=status.pods_wanted,
        pods_ready=status.pods_ready,
        nodes=sorted(nodes_of(status.placement)),
        submitted_at=status.submitted_at,
        admitted_at=status.admitted_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        ran_seconds=status.ran_seconds,
        attempt=status.attempt,
        restarts=status.restarts,
        eviction=last_eviction(status),
        **details,
    )


def pending_job(job: ReadableJob) -> PendingJob:
    """Why a pending job waits. `job` has its live status."""
    status = job.status
    reason, message = explain_phase(status)
    return PendingJob(
        metadata=job_meta(job),
        object_kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        reason=reason,
        message=message,
        position=status.queue_position,
        estimated_start=status.estimated_start,
        submitted_at=status.submitted_at,
        requeue_after=status.requeue_after,
        eviction=last_eviction(status),
    )


def job_meta(job: ReadableJob | spec.TrainingJob) -> ItemMeta:
    """Name, namespace, uid and creation time of a job."""
    namespace, name = job_key(job)
    meta = job.metadata
    return ItemMeta(name=name, namespace=namespace, uid=meta.uid, creation_timestamp=meta.creation_timestamp)
