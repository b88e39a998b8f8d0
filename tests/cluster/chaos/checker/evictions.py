"""No pod is stopped before the reason is written, and no job evicted before the capacity is nominated. Exact."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Job, Pod
from tests.cluster.chaos.checker.violation import Finding

DELETED_WITHIN_S = 10.0  # the beneficiary may have been deleted by its user just before
SAME_NAME_WITHIN_S = 60.0  # KWOK deletes by name, a kubelet by uid: its late delete may hit the next pod of that name


def check_stopped_pod(model: ClusterModel, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
    """A live pod was stopped, or removed."""
    if old is None or not old.job or not old.live or old.stopping:
        return
    if new is not None and new.uid == old.uid and not new.stopping:
        return
    if old.disrupted or (new is not None and new.disrupted):
        return
    if new is not None and new.forced and model.stopped.get(old.key, 0.0) > at - SAME_NAME_WITHIN_S:
        return
    job = model.jobs.get(old.job)
    if job is None or job.deleted:
        return
    if job.runs and job.attempt == old.attempt:
        objects = (("Pod", old.key), ("TrainingJob", job.key))
        message = f"{old.key} is stopped while {job.key} should run with it"
        yield "a pod is stopped after the reason is written", job.key, message, objects


def check_eviction(model: ClusterModel, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
    """A job is evicted, or shrunk, for another."""
    if not job.eviction_for or (old is not None and old.eviction_for == job.eviction_for):
        return
    preemptor = model.jobs.get(job.eviction_for)
    if preemptor is not None and preemptor.nomination is not None and job.uid in preemptor.nomination.victims:
        return
    objects = [("TrainingJob", job.key)]
    if preemptor is not None:
        objects.append(("TrainingJob", preemptor.key))
        message = f"evicted for {preemptor.key}, which has no nomination that names it"
    else:
        last = model.removed.get(job.eviction_for)
        if last is not None and last[1] >= at - DELETED_WITHIN_S:
            return
        message = f"evicted for {job.eviction_for}, which does not exist"
    yield "a nomination is written before its victims are stopped", job.key, message, tuple(objects)
