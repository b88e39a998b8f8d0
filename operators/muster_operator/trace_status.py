"""`status.traces` of traced jobs: the location of their traces, and how many were collected.

It is added to other status writes of a started job; a separate write is made once, when the job has finished and its
last collector has ended. The count is read from the pods, so that an operator that takes over knows it; counts of
deleted pods are known only to the operator that saw them.
"""

from __future__ import annotations

from muster.api import spec
from muster.cluster import WriteStatus
from muster.lifecycle import is_finished
from muster.lifecycle.observation import ACTIVE_POD_PHASES
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.pod_builder.collector import CollectorSidecarConfig, run_location


class TraceStatusTracker:
    """The trace statuses of all jobs in the cache."""

    def __init__(self, cache: ClusterCache, config: CollectorSidecarConfig) -> None:
        self._cache = cache
        self._config = config

    def with_traces(self, known: CachedJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        """The status with its traces; the same object if unchanged.

        The count never decreases: pods of earlier attempts are gone, their traces are not.
        """
        if known.job.spec.trace is None or not self._config.image:
            return status
        old = status.traces or spec.TraceStatus()
        files = max(old.files, self._cache.trace_counts.count(known.uid))
        has_run = status.started_at is not None or known.job.status.started_at is not None
        if status.traces is None and not has_run and files == 0:
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
