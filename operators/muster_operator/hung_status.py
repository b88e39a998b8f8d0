"""Writes which rank the others waited for into the status of a job that stalled, and as an Event."""

from __future__ import annotations

from muster.api import spec
from muster.capture.stacks import describe_stacks
from muster.cluster import ObjectWrites, RecordEvent, WriteStatus
from muster.lifecycle import pod_name
from muster.lifecycle.observation import ACTIVE_POD_PHASES
from muster_operator.cache.cluster_cache import ClusterCache

_MAX_SENTENCE = 1500  # of `status.lastFailure.logTail`; an Event has at most 1024
_MAX_EVENT = 900


def due_writes(cache: ClusterCache) -> list[ObjectWrites]:
    """Of attempts whose ranks did not stop and whose pods have all ended: the Event, and the status of a stalled job.

    The ranks of an attempt are known only to the operator that saw its pods end.
    """
    found = []
    for uid, hung in cache.hung_ranks.pending():
        known = cache.jobs.get(uid)
        if known is not None and cache.pods.has_pod_in_phase(uid, ACTIVE_POD_PHASES, attempt=hung.attempt):
            continue
        if known is None:
            cache.hung_ranks.mark_written(uid)
            continue
        sentence = describe_stacks(sorted(hung.ranks.values(), key=lambda one: one.rank))
        message = f"ranks of attempt {hung.attempt} did not stop: {sentence}"
        event = RecordEvent(uid, "Warning", "RanksDidNotStop", message[:_MAX_EVENT])
        status = _with_sentence(known.job, hung.attempt, sentence[:_MAX_SENTENCE])
        if status is None or status == known.job.status:
            cache.hung_ranks.mark_written(uid)
        if status is None:
            found.append(ObjectWrites(uid, (event,)))
        elif status != known.job.status:  # due again if it is rejected
            found.append(ObjectWrites(uid, (WriteStatus(uid, status, known.job.metadata.resource_version), event)))
    return found


def _with_sentence(job: spec.TrainingJob, attempt: int, sentence: str) -> spec.TrainingJobStatus | None:
    """The status with the sentence below the message of the stall; None if the last failure is another one."""
    failure, meta = job.status.last_failure, job.metadata
    if failure is None or failure.reason != "Stalled":
        return None
    names = {pod_name(meta.name, meta.uid, role.name, 0, attempt) for role in job.spec.roles}
    if failure.pod not in names:
        return None
    first = failure.log_tail.splitlines()[:1]
    changed = failure.model_copy(update={"log_tail": "\n".join([*first, sentence])})
    return job.status.model_copy(update={"last_failure": changed})
