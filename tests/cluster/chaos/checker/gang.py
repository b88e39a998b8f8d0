"""Pods belong to an admission, written or recorded by the only pod itself, in their slots, of one attempt.

Exact, after every write.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Job, Pod
from tests.cluster.chaos.checker.violation import Finding

_ADMITTED_FIRST = "no pod before its admission"
_WITHIN_PLACEMENT = "live pods are within the placement"


def check_created_pod(model: ClusterModel, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
    """A pod was created, changed or deleted. If it admits its job, that job is admitted."""
    if new is None or not new.job or (old is not None and old.uid == new.uid):
        return
    job = model.job_of(new.job)
    if job is None:
        yield _ADMITTED_FIRST, new.key, "created for a job that never existed", (("Pod", new.key),)
        return
    objects = (("Pod", new.key), ("TrainingJob", job.key))
    reason = _unwanted_reason(job, new)
    if reason and new.record is not None:
        invalid = model.invalid_record_reason(new, at)
        removed = job.uid not in model.jobs
        reason = f"{reason}, and is not admitted by it: {invalid}" if invalid else "" if removed else reason
    if reason:
        yield _ADMITTED_FIRST, new.key, f"created while {job.key} {reason}", objects
    for other in model.pods_of(job.uid):
        if other.live and other.attempt != new.attempt:
            message = f"attempt {new.attempt} starts while {other.key} of attempt {other.attempt} exists"
            yield "pods of two attempts never exist at the same time", job.key, message, (*objects, ("Pod", other.key))
        elif other.live and other.key != new.key and other.slot == new.slot:
            message = f"{new.key} and {other.key} are both {new.slot}"
            yield "no pod twice", job.key, message, (*objects, ("Pod", other.key))


def check_placement(model: ClusterModel, old: Job | None, job: Job) -> Iterator[Finding]:
    """A job changed: its pods must be within its placement, and its status must agree with what its pod recorded."""
    yield from _consistency(model.written[job.uid])
    recorded = old is not None and old.admitted_by and not job.admitted_by and old.attempt == job.attempt
    differs = old is not None and (job.placement, job.flavors) != (old.placement, old.flavors)
    if old is not None and recorded and job.placement and differs:
        message = f"its status has {_describe(job)}, and {old.admitted_by} recorded {_describe(old)}"
        yield _WITHIN_PLACEMENT, job.key, message, (("Pod", old.admitted_by), ("TrainingJob", job.key))
    if job.finished:
        return
    for pod in model.pods_of(job.uid):
        if not pod.live or pod.attempt < job.attempt:
            continue
        objects = (("Pod", pod.key), ("TrainingJob", job.key))
        if pod.attempt > job.attempt:
            message = f"{pod.key} is of attempt {pod.attempt}, the job is at {job.attempt}"
            yield _WITHIN_PLACEMENT, job.key, message, objects
        elif job.placement.get(pod.slot) != pod.pin:
            message = f"{pod.key} is pinned to {pod.pin}, the placement says {job.placement.get(pod.slot)}"
            yield _WITHIN_PLACEMENT, job.key, message, objects


def _consistency(job: Job) -> Iterator[Finding]:
    objects = (("TrainingJob", job.key),)
    if job.admitted and job.pods_wanted != len(job.placement):
        message = f"podsWanted is {job.pods_wanted}, its placement has {len(job.placement)}"
        yield "status is consistent", job.key, message, objects
    if job.phase != _phase(job):
        message = f"phase {job.phase} does not follow from its conditions, which say {_phase(job)}"
        yield "status is consistent", job.key, message, objects


def _describe(job: Job) -> str:
    return ", ".join(f"{node} ({job.flavors.get(role, '')})" for (role, _), node in sorted(job.placement.items()))


def _unwanted_reason(job: Job, pod: Pod) -> str:
    """Why the pod must not exist; "" if it may."""
    if not job.admitted or job.finished:
        return f"is {job.phase}"
    if job.evicted:
        return "is evicted"
    if pod.attempt != job.attempt:
        return f"is at attempt {job.attempt}, the pod is of {pod.attempt}"
    if pod.slot not in job.placement:
        return f"has no {pod.slot} in its placement"
    if pod.pin != job.placement[pod.slot]:
        return f"has {pod.slot} on {job.placement[pod.slot]}, the pod is pinned to {pod.pin or 'no node'}"
    return ""


def _phase(job: Job) -> str:
    true = {one["type"] for one in job.status.get("conditions") or () if one["status"] == "True"}
    if "Complete" in true:
        return "Succeeded"
    if "Failed" in true:
        return "Failed"
    if "Cancelled" in true:
        return "Cancelled" if job.status.get("finishedAt") else "Terminating"
    if "Suspended" in true:
        return "Suspended"
    if "Admitted" in true:
        return "Running" if "PodsReady" in true else "Admitted"
    return "Pending"
