"""Nobody is stopped before it is written why, nor told to leave before room is held for whom it leaves. Exact."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.judge.objects import Job, Pod
from tests.cluster.chaos.judge.world import World

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]
GONE_MEMORY_S = 10.0  # the beneficiary may have been deleted by its user just before
NAMESAKE_MEMORY_S = 60.0  # KWOK deletes by name, a kubelet by uid: its late delete may hit the next pod of that name


def pod(world: World, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
    """A pod that lived is stopped, or vanished."""
    if old is None or not old.job or not old.live or old.stopping:
        return
    if new is not None and new.uid == old.uid and not new.stopping:
        return
    if old.disrupted or (new is not None and new.disrupted):
        return
    if new is not None and new.forced and world.stopped.get(old.key, 0.0) > at - NAMESAKE_MEMORY_S:
        return
    job = world.jobs.get(old.job)
    if job is None or job.deleted:
        return
    if job.runs and job.attempt == old.attempt:
        shown = (("Pod", old.key), ("TrainingJob", job.key))
        message = f"{old.key} is stopped while {job.key} is to run with it"
        yield "a pod is stopped after it is written why", job.key, message, shown


def job(world: World, was: Job | None, job: Job, at: float) -> Iterator[Finding]:
    """A job is told to leave, or to shrink, for another."""
    if not job.eviction_for or (was is not None and was.eviction_for == job.eviction_for):
        return
    winner = world.jobs.get(job.eviction_for)
    if winner is not None and winner.hold is not None and job.uid in winner.hold.victims:
        return
    shown = [("TrainingJob", job.key)]
    if winner is not None:
        shown.append(("TrainingJob", winner.key))
        message = f"leaves for {winner.key}, which holds no room that names it"
    else:
        last = world.gone.get(job.eviction_for)
        if last is not None and last[1] >= at - GONE_MEMORY_S:
            return
        message = f"leaves for {job.eviction_for}, which does not exist"
    yield "a hold is written before its victims are told", job.key, message, tuple(shown)
