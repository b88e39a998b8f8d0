"""Writes one object of a scheduling cycle: the status of a job before its pods, statuses of queues and flavors.

The writer knows no way to run a job: what creates and deletes pods is passed in, as is what else statuses get.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from muster.api import spec
from muster.cluster import (
    CreatePod,
    DeletePod,
    ObjectWrites,
    PatchObject,
    RecordEvent,
    RemoveJob,
    UngatePod,
    WriteFlavorStatus,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import ClusterError
from muster.kube.async_client import METADATA_ONLY, ApiError, AsyncKubeClient, NoAnswer, is_server_wide
from muster.kube.resources import FLAVORS, QUEUES, TRAINING_JOBS, Resource
from muster.workload.conditions import SUSPENDED, is_admitted, is_condition_true, is_evicting, is_finished
from muster.workload.placement import pod_count
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cached_workload import CachedWorkload, StatusRequest
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.custom_objects import CustomObjectCache
from muster_operator.events import JobEvents
from muster_operator.job_transitions import job_transitions, log_transition
from muster_operator.logs import CYCLE
from muster_operator.metrics import JobMetrics
from muster_operator.writes.arrays import ArrayStatusWriter
from muster_operator.writes.queue import WriteQueue, WriteResult, object_key, written_metadata
from muster_operator.writes.refused import StatusRefused
from muster_operator.writes.uncertain import WriteTarget, read_into_cache

_LOG = logging.getLogger("muster.operator")
_MAX_ATTEMPTS = 8  # to write a status that gives up capacity, of a job that is edited all the time


class JobRunner(Protocol):
    """Creates and deletes pods: `muster_operator.runners.create_pods`."""

    async def apply(self, uid: str, writes: Sequence[CreatePod | DeletePod], deferred: set[str]) -> None:
        """All such writes of one job. Jobs with a rejected write are added to `deferred`; raises ClusterError for
        errors that affect all objects."""
        ...


class ObjectRunner(Protocol):
    """Starts and stops what controllers of other kinds run: `muster_operator.runners.suspended`."""

    async def patch(self, known: CachedWorkload, write: PatchObject) -> bool:
        """Patch the object; False if it was changed meanwhile."""
        ...

    async def apply(self, uid: str, writes: Sequence[UngatePod | DeletePod], deferred: set[str]) -> None:
        """As `JobRunner.apply`."""
        ...


class StatusAdditions(Protocol):
    """What the operator adds to the status of a job that is written."""

    def with_traces(self, known: CachedJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        """The status with it; the same object if unchanged."""
        ...

    def due_writes(self) -> list[WriteStatus]:
        """Statuses that are written for it alone."""
        ...


class UsageRecord(Protocol):
    """The durable record of usage."""

    def may_remove(self, known: CachedJob) -> bool:
        """Whether it has all usage of a job, so that the job may be removed."""
        ...


@dataclass(slots=True)
class JobWriter:
    """Writes to the API server, and updates the cache with acknowledged writes."""

    api: AsyncKubeClient
    cache: ClusterCache
    queue: WriteQueue
    pods: JobRunner
    objects: ObjectRunner
    events: JobEvents
    traces: StatusAdditions
    metrics: JobMetrics
    usage: UsageRecord | None  # None: usage is not recorded
    arrays: ArrayStatusWriter = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = ArrayStatusWriter(self.cache.jobs, self._put_array_status, is_current, self._on_index_written)

    async def write(self, item: ObjectWrites, result: WriteResult) -> bool:
        """All writes of one object; False if its status was rejected because the object changed."""
        known = self.cache.workload(item.job_uid)
        for write in item.writes:
            if isinstance(write, WriteStatus):
                events = tuple(one for one in item.writes if isinstance(one, RecordEvent))
                if not await self.write_status(write, events):
                    return False
            elif isinstance(write, PatchObject):
                if known is None or not await self.objects.patch(known, write):
                    return False
            elif isinstance(write, RecordEvent):
                self.events.record(write)
            elif isinstance(write, WriteQueueStatus):
                await self._write_status_of(self.cache.queues, QUEUES, write.queue, write.status)
            elif isinstance(write, WriteFlavorStatus):
                await self._write_status_of(self.cache.flavors, FLAVORS, write.flavor, write.status)
        if isinstance(known, CachedJob):
            created = [one for one in item.writes if isinstance(one, CreatePod | DeletePod)]
            if created:
                await self.pods.apply(item.job_uid, created, result.deferred)
        else:
            released = [one for one in item.writes if isinstance(one, UngatePod | DeletePod)]
            if released:
                await self.objects.apply(item.job_uid, released, result.deferred)
        for write in item.writes:
            if isinstance(write, RemoveJob):
                await self._remove(write.job_uid, result)
        if (key := object_key(item)) not in result.deferred:
            self.queue.reset(key)
        return True

    # ---- statuses

    async def write_status(self, write: WriteStatus, events: Sequence[RecordEvent] = ()) -> bool:
        """Write one status, unless the job changed meanwhile (False). Raises as `AsyncKubeClient.patch` does.

        A status that gives up capacity is written also if only metadata or spec changed: otherwise an owner who edits
        a job all the time would protect it from preemption.

        The caller records `events` after the write; if there is no answer, they are recorded once the status turns out
        to have been written.
        """
        known = self.cache.workload(write.job_uid)
        releases = write.old is not None and _gives_up_capacity(write.old, write.status)
        if known is None or not is_current(known, write):
            return False
        if isinstance(known, CachedJob) and known.job.spec.array is not None:
            return await self.arrays.write(write, events)
        status = write.status
        if isinstance(known, CachedJob) and isinstance(status, spec.TrainingJobStatus):
            status = self.traces.with_traces(known, status)
        if (cycle := CYCLE.get()) is not None:
            status = status.model_copy(update={"last_cycle": cycle})
        attempts = _MAX_ATTEMPTS if releases else 1
        while not await self._patch_status(known, status, events):
            attempts -= 1
            if attempts == 0:
                return False
            version, known = known.version, await self._read(known)
            if known is None or known.status != write.old or known.version == version:
                return False
        return True

    async def _put_array_status(
        self, array: CachedJob, status: spec.TrainingJobStatus, events: Sequence[RecordEvent]
    ) -> bool:
        if (cycle := CYCLE.get()) is not None:
            status = status.model_copy(update={"last_cycle": cycle})
        return await self._patch_status(array, status, events)

    def _on_index_written(self, known: CachedJob, status: spec.TrainingJobStatus) -> None:
        self.metrics.on_status_written(known.workload, status, self.metrics.cycle_started_at)
        for transition in job_transitions(known.status, status):
            log_transition(transition, known.key, status, self._name_of)

    async def _read(self, known: CachedWorkload) -> CachedWorkload | None:
        """The newest version of a job; None if it was deleted."""
        for path in known.paths:
            await read_into_cache(self.api, self.cache, path)
        return self.cache.workload(known.uid)

    async def _patch_status(
        self, known: CachedWorkload, status: spec.QueueingStatus, events: Sequence[RecordEvent]
    ) -> bool:
        """Write the status unless there is a newer version of the job than `known` (False)."""
        request = known.status_request(status)
        body = msgspec.json.encode(request.body)
        old = known.status
        decided_at = self.metrics.cycle_started_at
        target = WriteTarget(
            known.uid,
            known.paths[-1],
            "several jobs" if is_array(known) else _affected_jobs(old, status),
            on_settled=lambda: self._on_status_settled(known, status, decided_at, events),
        )
        try:
            answer = await self.queue.uncertain.perform(target, lambda: self._send(request, body))
        except ApiError as error:
            if error.code in (404, 409):
                return False
            if is_server_wide(error):
                raise
            self._on_status_refused(known, status, error)
            raise StatusRefused(str(error)) from error
        except NoAnswer:
            if is_admitted(status) and not is_admitted(old) and not is_array(known):
                self.cache.store(known.uid).assume_status(known.uid, status)
            raise
        version = written_metadata(answer).version
        self.cache.store(known.uid).on_status_written(known.uid, status, version, known.queue)
        self.queue.refused.accepted(known.uid, old, status)
        self._on_status_written(known, status, decided_at)
        return True

    async def _send(self, request: StatusRequest, body: bytes) -> bytes:
        if request.collection:
            return await self.api.post(request.collection, body, accept=METADATA_ONLY)
        if request.replaces:
            return await self.api.put(request.path, body, accept=METADATA_ONLY)
        return await self.api.patch(request.path, body)

    def _on_status_refused(self, known: CachedWorkload, status: spec.QueueingStatus, error: ApiError) -> None:
        change = self.queue.refused.record(known, status, error)
        if change is None:
            return
        what = "status" if change in ("Release", "Update") else change.lower()
        if change == "Eviction" and status.eviction is not None:
            what += f" for {self._name_of(status.eviction.beneficiary)}"
        message = f"the API server refuses its {what}: {error.message or error}"
        _LOG.error("status refused", extra={"job": known.key, "change": change, "why": message})
        self.events.record(RecordEvent(known.uid, "Warning", "StatusWriteFailed", message))

    def _on_status_written(self, known: CachedWorkload, status: spec.QueueingStatus, decided_at: float) -> None:
        self.events.on_status_written(known.uid, known.status, status)
        self.metrics.on_status_written(known.workload, status, decided_at)
        for transition in job_transitions(known.status, status):
            log_transition(transition, known.key, status, self._name_of)

    def _name_of(self, uid: str) -> str:
        known = self.cache.workload(uid)
        return uid if known is None else known.key

    def _on_status_settled(
        self, known: CachedWorkload, status: spec.QueueingStatus, decided_at: float, events: Sequence[RecordEvent]
    ) -> None:
        """The outcome of a write of this status without an answer is known. The cycle that it names shows whether it
        was written."""
        now = self.cache.workload(known.uid)
        if now is not None and now.status.last_cycle == status.last_cycle:
            self._on_status_written(known, status, decided_at)
            for event in events:
                self.events.record(event)

    async def _write_status_of(
        self,
        cache: CustomObjectCache[spec.Queue] | CustomObjectCache[spec.Flavor],
        resource: Resource,
        name: str,
        status: spec.QueueStatus | spec.FlavorStatus,
    ) -> None:
        """Write the status of a queue or flavor for the version in our cache only: otherwise an edit in between would
        count as older than our own write, and never be read."""
        target = cache.get(name)
        if target is None:
            return
        patch = {
            "metadata": {"resourceVersion": target.metadata.resource_version},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        call = self.api.patch(resource.path(None, name, "status"), msgspec.json.encode(patch))
        version = await _version_unless_deleted(call)
        if version is not None:
            cache.on_written(name, version, {"status": status})

    async def _remove(self, uid: str, result: WriteResult) -> None:
        """Delete a job whose TTL expired. One that a user deletes is removed once its pods are."""
        known = self.cache.jobs.get(uid)
        if known is None or known.array is not None or known.job.metadata.deletion_timestamp is not None:
            return
        if self.usage is not None and not self.usage.may_remove(known):
            self.queue.record_failure(uid, ClusterError("its usage is not recorded yet"), result.deferred)
            return
        meta = known.job.metadata
        preconditions = {"uid": uid, "resourceVersion": meta.resource_version}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        path = TRAINING_JOBS.path(known.namespace, meta.name)
        try:
            await _version_unless_deleted(self.api.delete(path, msgspec.json.encode(options)))
        except ApiError as error:
            if is_server_wide(error):
                raise
            self.queue.record_refusal(uid, error, result.deferred)


def is_array(known: CachedWorkload) -> bool:
    """Whether its status has those of the indices of an array."""
    return isinstance(known, CachedJob) and known.job.spec.array is not None


def is_current(known: CachedWorkload, write: WriteStatus) -> bool:
    """Whether a status was decided on the present state. For one that gives up capacity that of the status is
    enough."""
    releases = write.old is not None and _gives_up_capacity(write.old, write.status)
    return known.version == write.resource_version or (releases and known.status == write.old)


def _gives_up_capacity(old: spec.QueueingStatus, new: spec.QueueingStatus) -> bool:
    """Whether an admitted job is evicted or loses pods."""
    return is_admitted(old) and (is_evicting(new) or pod_count(new.placement) < pod_count(old.placement))


def _affected_jobs(old: spec.QueueingStatus, new: spec.QueueingStatus) -> Literal["no job", "its job", "several jobs"]:
    """Whose capacity depends on this status. A nomination and the evictions for it belong together."""
    if any(status.nomination is not None or status.eviction is not None for status in (old, new)):
        return "several jobs"
    if is_admitted(old) and is_admitted(new) and old.placement != new.placement:
        return "several jobs"  # neither placement is a safe assumption
    before, after = (
        (is_admitted(one), is_finished(one), is_condition_true(one, SUSPENDED), one.attempt) for one in (old, new)
    )
    return "no job" if before == after else "its job"


async def _version_unless_deleted(call: Awaitable[bytes]) -> int | None:
    """The version after the call; None if no object of that name, uid and version exists."""
    try:
        return written_metadata(await call).version
    except ApiError as error:
        if error.code in (404, 409):
            return None
        raise
