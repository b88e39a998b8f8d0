"""What the operator adds to a job's status: `status.traces` of traced jobs, and where the ranks were of a job that
stalled, or was stopped without a checkpoint."""

from __future__ import annotations

from muster.api import spec
from muster.cluster import ObjectWrites, RecordEvent, WriteStatus
from muster.kinds.trainingjob.failure import has_stalled
from muster.kinds.trainingjob.stops import NOT_SAVED
from muster.workload.conditions import is_finished
from muster.workload.observation import ACTIVE_POD_PHASES
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.hang_sentences import HangSentences
from muster_operator.pod_builder.collector import CollectorSidecarConfig, run_location

_MAX_SENTENCE = 1500  # of `status.lastFailure.logTail`; an Event has at most 1024
_MAX_EVENT = 900


class TraceStatusTracker:
    """`status.traces` of traced jobs: the location of their traces, and how many were collected.

    It is added to other status writes of a started job; a separate write is made once, when the job has finished and
    its last collector has ended. The count is read from the pods, so that an operator that takes over knows it; counts
    of deleted pods are known only to the operator that saw them.
    """

    def __init__(self, cache: ClusterCache, config: CollectorSidecarConfig) -> None:
        self._cache = cache
        self._config = config

    def with_traces(self, known: CachedJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        """The status with its traces; the same object if unchanged.

        The count never decreases: pods of earlier attempts are deleted, their traces are not.
        """
        if (known.job.spec.trace is None and not self._config.all_jobs) or not self._config.image:
            return status
        old = status.traces or spec.TraceStatus()
        files = max(old.files, self._cache.trace_counts.count(known.uid))
        has_run = status.started_at is not None or known.job.status.started_at is not None
        is_stored = known.job.spec.trace is not None or bool(
            self._config.store
        )  # with a store, logs and metrics are too
        if status.traces is None and files == 0 and not (has_run and is_stored):
            return status
        new = spec.TraceStatus(report=old.report, files=files, location=run_location(known.job, self._config))
        return status if new == status.traces else status.model_copy(update={"traces": new})

    def due_writes(self) -> list[WriteStatus]:
        """Statuses with new traces, of finished jobs whose collectors have all ended."""
        writes = []
        for uid in self._cache.trace_counts.pending():
            known = self._cache.jobs.get(uid)
            if known is None:
                self._cache.trace_counts.mark_written(uid)
                continue
            if not is_finished(known.job.status) or self._cache.pods.has_pod_in_phase(uid, ACTIVE_POD_PHASES):
                continue
            status = self.with_traces(known, known.job.status)
            if status is known.job.status:
                self._cache.trace_counts.mark_written(uid)
                continue
            writes.append(WriteStatus(uid, status, known.job.metadata.resource_version))
        return writes


def hung_rank_writes(cache: ClusterCache, sentences: HangSentences) -> list[ObjectWrites]:
    """Of attempts whose ranks did not stop, or that were stopped without a checkpoint, whose pods have all ended, and
    whose sentence is known: the Event, and the status of the job.

    The ranks of an attempt are known only to the operator that saw its pods end.
    """
    found = []
    pending = cache.hung_ranks.pending()
    sentences.retain({uid for uid, _ in pending})
    for uid, hung in pending:
        known = cache.jobs.get(uid)
        if known is not None and cache.pods.has_pod_in_phase(uid, ACTIVE_POD_PHASES, attempt=hung.attempt):
            continue
        if known is None:
            cache.hung_ranks.mark_written(uid)
            continue
        stop = _stop_of(known.job, hung.attempt)
        if stop is not None and stop.ended_at is None:
            continue  # whether a checkpoint was saved is decided first
        is_hung = has_stalled(known.job, hung.attempt) or any(pod.did_not_stop for pod in hung.pods.values())
        is_lost = stop is not None and not stop.saved
        sentence = sentences.get(uid, known.name.namespace, hung) if is_hung or is_lost else ""
        if sentence is None:
            continue
        if not sentence:
            cache.hung_ranks.mark_written(uid)
            continue
        event = _hung_ranks_event(known.job, hung.attempt, sentence, is_hung=is_hung)
        status = _with_hung_ranks(known.job, hung.attempt, sentence[:_MAX_SENTENCE])
        if status is None or status == known.job.status:
            cache.hung_ranks.mark_written(uid)
        if status is None:
            found.append(ObjectWrites(uid, (event,)))
        elif status != known.job.status:  # due again if it is rejected
            found.append(ObjectWrites(uid, (WriteStatus(uid, status, known.job.metadata.resource_version), event)))
    return found


def _stop_of(job: spec.TrainingJob, attempt: int) -> spec.StopStatus | None:
    """How this attempt was stopped, if it was the last one."""
    stop = job.status.last_stop
    return stop if stop is not None and stop.attempt == attempt else None


def _hung_ranks_event(job: spec.TrainingJob, attempt: int, sentence: str, *, is_hung: bool) -> RecordEvent:
    if not is_hung:
        text = f"attempt {attempt} saved no checkpoint; when it was stopped, {sentence}"
        return RecordEvent(job.metadata.uid, "Warning", NOT_SAVED, text[:_MAX_EVENT])
    did = "stalled" if has_stalled(job, attempt) else "did not stop"
    text = f"ranks of attempt {attempt} {did}: {sentence}"
    return RecordEvent(job.metadata.uid, "Warning", "RanksDidNotStop", text[:_MAX_EVENT])


def _with_hung_ranks(job: spec.TrainingJob, attempt: int, sentence: str) -> spec.TrainingJobStatus | None:
    """The status with the sentence in the stop of this attempt that saved no checkpoint, or below the message of its
    stall; None if it has neither."""
    stop, failure = _stop_of(job, attempt), job.status.last_failure
    if stop is not None and not stop.saved:
        return job.status.model_copy(update={"last_stop": stop.model_copy(update={"ranks": sentence})})
    if failure is None or not has_stalled(job, attempt):
        return None
    first = failure.log_tail.splitlines()[:1]
    changed = failure.model_copy(update={"log_tail": "\n".join([*first, sentence])})
    return job.status.model_copy(update={"last_failure": changed})
