"""Pods are only ever those of an admission, written or told by the only pod itself, in their places, of one attempt.

Exact, after every write.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.judge.objects import Job, Pod
from tests.cluster.chaos.judge.world import World

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]


def pod(world: World, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
    """A pod appeared, changed or went. If it admits its job, that job is admitted."""
    if new is None or not new.job or (old is not None and old.uid == new.uid):
        return
    job = world.job_of(new.job)
    if job is None:
        yield "no pod before its admission", new.key, "created for a job that never was", (("Pod", new.key),)
        return
    shown = (("Pod", new.key), ("TrainingJob", job.key))
    why = _unwanted(job, new)
    if why and new.told is not None:
        wrong = world.no_admission(new, at)
        removed = job.uid not in world.jobs
        why = f"{why}, and is not admitted by it: {wrong}" if wrong else "" if removed else why
    if why:
        yield "no pod before its admission", new.key, f"created while {job.key} {why}", shown
    for other in world.pods_of(job.uid):
        if other.live and other.attempt != new.attempt:
            message = f"attempt {new.attempt} begins while {other.key} of attempt {other.attempt} lives"
            yield "two attempts never live at once", job.key, message, (*shown, ("Pod", other.key))
        elif other.live and other.key != new.key and other.seat == new.seat:
            yield (
                "no pod twice",
                job.key,
                f"{new.key} and {other.key} are both {new.seat}",
                (*shown, ("Pod", other.key)),
            )


def job(world: World, was: Job | None, job: Job) -> Iterator[Finding]:
    """A job changed: its pods have to be within what is written now, and what is written is what its pod told."""
    yield from _of_one_piece(world.written[job.uid])
    told = was is not None and was.by and not job.by and was.attempt == job.attempt
    if was is not None and told and job.places and (job.places, job.flavors) != (was.places, was.flavors):
        message = f"it is written to be on {_where(job)}, and was admitted by {was.by} to {_where(was)}"
        yield "live pods are within the placement", job.key, message, (("Pod", was.by), ("TrainingJob", job.key))
    if job.finished:
        return
    for pod in world.pods_of(job.uid):
        if not pod.live or pod.attempt < job.attempt:
            continue
        shown = (("Pod", pod.key), ("TrainingJob", job.key))
        if pod.attempt > job.attempt:
            message = f"{pod.key} is of attempt {pod.attempt}, the job is at {job.attempt}"
            yield "live pods are within the placement", job.key, message, shown
        elif job.places.get(pod.seat) != pod.pin:
            message = f"{pod.key} is pinned to {pod.pin}, the placement says {job.places.get(pod.seat)}"
            yield "live pods are within the placement", job.key, message, shown


def _of_one_piece(job: Job) -> Iterator[Finding]:
    shown = (("TrainingJob", job.key),)
    if job.admitted and job.pods_wanted != len(job.places):
        message = f"podsWanted is {job.pods_wanted}, its placement has {len(job.places)}"
        yield "status is of one piece", job.key, message, shown
    if job.phase != _phase(job):
        message = f"phase {job.phase} does not follow from its conditions, which say {_phase(job)}"
        yield "status is of one piece", job.key, message, shown


def _where(job: Job) -> str:
    return ", ".join(f"{node} ({job.flavors.get(role, '')})" for (role, _), node in sorted(job.places.items()))


def _unwanted(job: Job, pod: Pod) -> str:
    """Why the pod may not be; "" if it may."""
    if not job.admitted or job.finished:
        return f"is {job.phase}"
    if job.leaving:
        return "leaves"
    if pod.attempt != job.attempt:
        return f"is at attempt {job.attempt}, the pod is of {pod.attempt}"
    if pod.seat not in job.places:
        return f"has no place for {pod.seat}"
    if pod.pin != job.places[pod.seat]:
        return f"has {pod.seat} on {job.places[pod.seat]}, the pod is pinned to {pod.pin or 'nothing'}"
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
