"""Pods belong to a written admission, in their slots, of one attempt. Exact, after every write."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Job, Pod
from tests.cluster.chaos.checker.violation import Finding

_ADMITTED_FIRST = "no pod before its admission"
_WITHIN_PLACEMENT = "live pods are within the placement"


def check_created_pod(model: ClusterModel, old: Pod | None, new: Pod | None) -> Iterator[Finding]:
    """A pod was created, changed or deleted: a new one must be in the placement that its job's status admits."""
    if new is None or not new.job or (old is not None and old.uid == new.uid):
        return
    job = model.job_of(new.job)
    if job is None:
        yield _ADMITTED_FIRST, new.key, "created for a job that never existed", (("Pod", new.key),)
        return
    objects = (("Pod", new.key), ("TrainingJob", job.key))
    reason = _unwanted_reason(job, new)
    if reason:
        yield _ADMITTED_FIRST, new.key, f"created while {job.key} {reason}", objects
    for other in model.pods_of(job.uid):
        if other.live and other.attempt != new.attempt:
            message = f"attempt {new.attempt} starts while {other.key} of attempt {other.attempt} exists"
            yield "pods of two attempts never exist at the same time", job.key, message, (*objects, ("Pod", other.key))
        elif other.live and other.key != new.key and other.slot == new.slot:
            message = f"{new.key} and {other.key} are both {new.slot}"
            yield "no pod twice", job.key, message, (*objects, ("Pod", other.key))


def check_placement(model: ClusterModel, job: Job) -> Iterator[Finding]:
    """A job changed: its status must be consistent, and its pods within its placement."""
    yield from _consistency(job)
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
