"""Writes the decisions of a scheduling cycle: many jobs concurrently, each job's status before its pods.

The order of writes is the one of `muster.cluster`. A long cycle stops starting jobs after a while: what was not started
is decided again on newer state, so that other changes need not wait for thousands of writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from muster import spec
from muster.cluster import (
    CreatePod,
    DeletePod,
    ObjectWrites,
    RecordEvent,
    RemoveJob,
    WriteFlavorStatus,
    WritePhase,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.resources import FLAVORS, QUEUES, TRAINING_JOBS
from muster_operator.cache.admission_signing import AdmissionSigner
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.write_response import written_metadata
from muster_operator.dry_run import DryRuns
from muster_operator.event_recorder import EventRecorder, PendingEvent
from muster_operator.pending_reason_events import PENDING, PendingReasonEvents
from muster_operator.pod_builder.events import event_manifest
from muster_operator.pod_builder.pods import PodConfig
from muster_operator.pod_builder.status_patch import status_patch
from muster_operator.pod_control import PodControl
from muster_operator.retry_limiter import RetryLimiter, is_server_wide
from muster_operator.single_pod_admission import SinglePodAdmitter
from muster_operator.uncertain_writes import UncertainWrites

_LOG = logging.getLogger("muster.operator")
_SUPERSEDES = {
    "Completed": "Admitted",
    "Admitted": PENDING,
}  # an Event reason, and the reason of the pending Event that it makes obsolete


class StatusObserver(Protocol):
    """Called for each acknowledged status."""

    def __call__(self, before: spec.TrainingJob, status: spec.TrainingJobStatus) -> None:
        """The status of this job was written."""


class StatusMutator(Protocol):
    """Completes statuses before they are written."""

    def __call__(self, known: CachedJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        """The status to write instead of `status`."""


@dataclass(slots=True)
class WriteResult:
    """What was not written. `unwritten`: uids of jobs whose status or other writes are missing; `conflicts`: statuses
    rejected because the object changed meanwhile."""

    unwritten: set[str] = field(default_factory=set)
    not_admitted: set[str] = field(default_factory=set)  # jobs not admitted because their pod was not created
    deferred: set[str] = field(default_factory=set)  # jobs with a rejected write; `RetryLimiter` has the pause
    conflicts: int = 0
    refused: int = 0  # statuses rejected for another reason than a conflict
    api_error: ClusterError | None = None  # no answer, or no right to write at all

    @property
    def is_complete(self) -> bool:
        """Whether everything was written."""
        return not self.unwritten and self.api_error is None

    def merge(self, other: WriteResult) -> None:
        """Add the result of later writes."""
        self.unwritten |= other.unwritten
        self.not_admitted |= other.not_admitted
        self.deferred |= other.deferred
        self.conflicts += other.conflicts
        self.refused += other.refused
        self.api_error = self.api_error or other.api_error


@dataclass(slots=True)
class DecisionWriter:
    """Writes to the API server, and updates the cache with acknowledged writes."""

    api: AsyncKubeClient
    cache: ClusterCache
    dry_runs: DryRuns
    uncertain_writes: UncertainWrites
    events: EventRecorder
    pod_config: PodConfig
    instance: str
    max_concurrent_jobs: int = 64
    mutate_status: StatusMutator = lambda known, status: status
    on_status_written: StatusObserver = lambda before, status: None
    active_cycles: int = 0  # cycles in progress: Events wait for them
    retry_limiter: RetryLimiter = field(default_factory=RetryLimiter)
    signer: AdmissionSigner | None = None  # of pods' admission records; None: every status is written before its pods
    pod_control: PodControl = field(init=False)
    single_pod_admitter: SinglePodAdmitter = field(init=False)
    pending_reasons: PendingReasonEvents = field(init=False)

    def __post_init__(self) -> None:
        """Build the components that share these parts."""
        parts = self.api, self.cache, self.dry_runs, self.uncertain_writes, self.pod_config
        self.pod_control = PodControl(*parts, self.record, self.retry_limiter)
        self.single_pod_admitter = SinglePodAdmitter(self.cache, self.pod_control, self.retry_limiter)
        self.pending_reasons = PendingReasonEvents(self.cache, self.record)

    async def apply(self, phases: Sequence[WritePhase], start_within_s: float) -> WriteResult:
        """Write phase after phase until one is incomplete. No job is started after `start_within_s`."""
        outcome, began = WriteResult(), time.monotonic()
        self.active_cycles += 1
        try:
            for number, phase in enumerate(phases):
                await self._apply_phase(phase, outcome, began + start_within_s)
                if not outcome.is_complete:
                    outcome.unwritten.update(item.job_uid for later in phases[number + 1 :] for item in later)
                    break
        finally:
            self.active_cycles -= 1
        outcome.unwritten.discard("")
        return outcome

    async def _apply_phase(self, phase: WritePhase, outcome: WriteResult, until: float) -> None:
        left = iter(phase)
        if len(phase) == 1:
            await self._run_worker(left, outcome, until)
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.max_concurrent_jobs, len(phase))):
                group.create_task(self._run_worker(left, outcome, until))

    async def _run_worker(self, left: Any, outcome: WriteResult, until: float) -> None:
        """Write objects until none is left."""
        for item in left:
            if outcome.api_error is not None or time.monotonic() >= until:
                outcome.unwritten.add(item.job_uid)
                continue
            try:
                if not await self._apply_object(item, outcome):
                    outcome.conflicts += 1
                    outcome.unwritten.add(item.job_uid)
            except ClusterError as error:
                outcome.unwritten.add(item.job_uid)
                if isinstance(error, ApiError) and not is_server_wide(error):
                    outcome.refused += 1
                    self._record_failure(_object_key(item), error, outcome)
                else:
                    outcome.api_error = error
            except Exception as error:  # a bug that this object caused: the others are written
                _LOG.exception("write failed", extra={"of": _object_key(item)})
                outcome.unwritten.add(item.job_uid)
                outcome.refused += 1
                self._record_failure(_object_key(item), ApiError(500, "", f"{type(error).__name__}: {error}"), outcome)

    def _record_failure(self, key: str, error: ApiError, outcome: WriteResult) -> None:
        """A write of an object other than a pod was rejected."""
        if key not in outcome.deferred:
            outcome.deferred.add(key)
            self.retry_limiter.record_write_failure(key, error)

    # ---- one object

    async def _apply_object(self, item: ObjectWrites, outcome: WriteResult) -> bool:
        """All writes of one object; False if its status was rejected."""
        if (admit_result := await self._admit_by_pod(item, outcome)) is not None:
            return admit_result
        pods: list[CreatePod | DeletePod] = []
        for write in item.writes:
            if isinstance(write, WriteStatus):
                if not await self.write_status(write):
                    return False
            elif isinstance(write, CreatePod | DeletePod):
                pods.append(write)
            elif isinstance(write, RecordEvent):
                self.record(write)
            elif isinstance(write, WriteQueueStatus):
                await self._write_queue_status(write)
            elif isinstance(write, WriteFlavorStatus):
                await self._write_flavor_status(write)
        if any(isinstance(one, CreatePod) for one in pods) and not await self._write_lagging_status(item.job_uid):
            return False
        if pods:
            await self.pod_control.apply(item.job_uid, pods, outcome.deferred)
        for write in item.writes:
            if isinstance(write, RemoveJob):
                await self._remove(write.job_uid, outcome)
        if (of := _object_key(item)) not in outcome.deferred:
            self.retry_limiter.reset(of)
        return True

    async def _admit_by_pod(self, item: ObjectWrites, outcome: WriteResult) -> bool | None:
        """Admit a single-pod gang by creating its pod. False: the job changed meanwhile; None: its status has to be
        written first."""
        admission = None if self.signer is None else self.single_pod_admitter.plan(item, self.signer)
        if (
            admission is None
            or self.mutate_status(admission.known, admission.status.status) is not admission.status.status
        ):
            return None
        admit_result = await self.single_pod_admitter.apply(admission, outcome.deferred)
        if admit_result == "status first":
            return None
        if admit_result == "not now":
            outcome.not_admitted.add(item.job_uid)
        elif admit_result == "admitted":
            self.pending_reasons.on_status_written(
                item.job_uid, admission.known.written_status, admission.status.status
            )
            self.on_status_written(admission.known.job, admission.status.status)
            for write in item.writes:
                if isinstance(write, RecordEvent):
                    self.record(write)
            self.retry_limiter.reset(item.job_uid)
        return admit_result != "changed"

    async def _write_lagging_status(self, uid: str) -> bool:
        """Write the status of a job whose admission only its pod records, before its next status; False if rejected."""
        known = self.cache.jobs.get(uid)
        if known is None or known.lagging_status is None:
            return True
        return await self.write_status(WriteStatus(uid, known.job.status, known.job.metadata.resource_version or ""))

    async def write_status(self, write: WriteStatus) -> bool:
        """Write one status, unless the job changed meanwhile (False). Raises as `AsyncKubeClient.patch` does."""
        known = self.cache.jobs.get(write.job_uid)
        if known is None or known.job.metadata.resource_version != write.resource_version:
            return False
        status = self.mutate_status(known, write.status)
        patch = status_patch(known.written_status, status, write.resource_version)
        name, body = known.job.metadata.name, msgspec.json.encode(patch)
        path = TRAINING_JOBS.path(known.namespace, name, "status")
        try:
            answer = await self.uncertain_writes.perform(
                TRAINING_JOBS.path(known.namespace, name), lambda: self.api.patch(path, body)
            )
        except ApiError as error:
            if error.code in (404, 409):
                return False
            raise
        self.cache.jobs.on_status_written(write.job_uid, status, written_metadata(answer).version)
        self.pending_reasons.on_status_written(write.job_uid, known.written_status, status)
        self.on_status_written(known.job, status)
        return True

    async def _write_queue_status(self, write: WriteQueueStatus) -> None:
        queue = self.cache.queues.get(write.queue)
        if queue is not None:
            path = QUEUES.path(None, write.queue, "status")
            version = await _version_unless_gone(self.api.patch(path, _status_patch_body(queue, write.status)))
            if version is not None:
                self.cache.queues.on_written(write.queue, version, {"status": write.status})

    async def _write_flavor_status(self, write: WriteFlavorStatus) -> None:
        flavor = self.cache.flavors.get(write.flavor)
        if flavor is not None:
            path = FLAVORS.path(None, write.flavor, "status")
            version = await _version_unless_gone(self.api.patch(path, _status_patch_body(flavor, write.status)))
            if version is not None:
                self.cache.flavors.on_written(write.flavor, version, {"status": write.status})

    def record(self, event: RecordEvent) -> None:
        """Queue an Event."""
        known = self.cache.jobs.get(event.job_uid)
        if known is not None:
            manifest = event_manifest(known.job.metadata, event, time.time(), self.instance)
            about = f"{event.job_uid} {event.reason}"
            instead = f"{event.job_uid} {_SUPERSEDES[event.reason]}" if event.reason in _SUPERSEDES else ""
            self.events.enqueue(PendingEvent(known.namespace, manifest, about, instead))

    async def _remove(self, uid: str, outcome: WriteResult) -> None:
        """Delete a job whose TTL expired. One that a user deletes is gone once its pods are."""
        known = self.cache.jobs.get(uid)
        if known is None or known.job.metadata.deletion_timestamp is not None:
            return
        meta = known.job.metadata
        preconditions = {"uid": uid, "resourceVersion": meta.resource_version}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        path = TRAINING_JOBS.path(known.namespace, meta.name)
        try:
            await _version_unless_gone(self.api.delete(path, msgspec.json.encode(options)))
        except ApiError as error:
            if is_server_wide(error):
                raise
            self._record_failure(uid, error, outcome)


def _object_key(item: ObjectWrites) -> str:
    """Key of the object that is written: a job's uid, or the queue's or flavor's name."""
    first = item.writes[0]
    if isinstance(first, WriteQueueStatus):
        return f"queue {first.queue}"
    return f"flavor {first.flavor}" if isinstance(first, WriteFlavorStatus) else item.job_uid


def _status_patch_body(target: spec.Queue | spec.Flavor, status: spec.QueueStatus | spec.FlavorStatus) -> bytes:
    """A status for the version in our cache only: otherwise an edit in between would look older than our own write, and
    never be seen."""
    version = {"resourceVersion": target.metadata.resource_version}
    return msgspec.json.encode(
        {"metadata": version, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    )


async def _version_unless_gone(call: Any) -> int | None:
    """The version after the call; None if no object of that name, uid and version exists."""
    try:
        return written_metadata(await call).version
    except ApiError as error:
        if error.code in (404, 409):
            return None
        raise
