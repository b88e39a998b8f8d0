"""Carries a round's writes out: many jobs side by side, each job's status before its pods.

The four rules are those of `muster.cluster`. A round that takes long stops beginning jobs after a while: what was not
begun is decided again, on news, and nothing that happened meanwhile has to wait for thousands of writes.
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
    Phase,
    RecordEvent,
    RemoveJob,
    WriteFlavorStatus,
    WriteQueueStatus,
    WriteStatus,
)
from muster.errors import ClusterError
from muster.snapshot import pod_request
from muster_operator.dryrun import DryRuns
from muster_operator.kube.api import METADATA_ONLY, Api, ApiError
from muster_operator.kube.resources import FLAVORS, PODS, QUEUES, SERVICES, TRAINING_JOBS
from muster_operator.manifests.events import event_manifest
from muster_operator.manifests.pods import PodChoices, pod_manifest
from muster_operator.manifests.services import needs_service, service_manifest
from muster_operator.manifests.status import status_patch
from muster_operator.outbox import Letter, Outbox
from muster_operator.sight.jobs import KnownJob
from muster_operator.sight.pods import created_pod
from muster_operator.sight.shapes import Meta, Pod
from muster_operator.sight.world import Sight

_LOG = logging.getLogger("muster.operator")
_REFUSALS = frozenset({400, 403, 404, 413, 422})
_SERVED_MOST = 50_000


class _Written(msgspec.Struct):
    """What we read of the answer to a write."""

    metadata: Meta


class Observer(Protocol):
    """Who is told of acknowledged statuses."""

    def __call__(self, before: spec.TrainingJob, status: spec.TrainingJobStatus) -> None:
        """The status of this job is written."""


@dataclass(slots=True)
class Outcome:
    """`unwritten`: jobs of which not everything was written; `conflicts`: how many statuses were refused."""

    unwritten: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)  # jobs with a pod that the API server refuses for now
    conflicts: int = 0
    refused: int = 0  # objects that the API server refuses as they are
    trouble: ClusterError | None = None  # the API server could not be reached, or may not be written to

    @property
    def whole(self) -> bool:
        """Whether everything was written."""
        return not self.unwritten and self.trouble is None


@dataclass(slots=True)
class Writer:
    """Writes to the API server, and tells `sight` what was acknowledged."""

    api: Api
    sight: Sight
    dry_runs: DryRuns
    outbox: Outbox
    choices: PodChoices
    instance: str
    jobs_at_once: int = 64
    wrote: Observer = lambda before, status: None
    busy: int = 0  # rounds under way: events wait for them
    _served: set[str] = field(default_factory=set)  # jobs whose Service is known to be there

    async def carry_out(self, phases: Sequence[Phase], begin_within_s: float) -> Outcome:
        """Phase after phase, until one is not carried out whole. After `begin_within_s` no more jobs are begun."""
        outcome, began = Outcome(), time.monotonic()
        self.busy += 1
        try:
            for number, phase in enumerate(phases):
                await self._phase(phase, outcome, began + begin_within_s)
                if not outcome.whole:
                    outcome.unwritten.update(item.job_uid for later in phases[number + 1 :] for item in later)
                    break
        finally:
            self.busy -= 1
        outcome.unwritten.discard("")
        return outcome

    async def _phase(self, phase: Phase, outcome: Outcome, until: float) -> None:
        left = iter(phase)
        if len(phase) == 1:
            await self._work(left, outcome, until)
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.jobs_at_once, len(phase))):
                group.create_task(self._work(left, outcome, until))

    async def _work(self, left: Any, outcome: Outcome, until: float) -> None:
        """Take one job after the other."""
        for item in left:
            if outcome.trouble is not None or time.monotonic() >= until:
                outcome.unwritten.add(item.job_uid)
                continue
            try:
                if not await self._object(item, outcome):
                    outcome.conflicts += 1
                    outcome.unwritten.add(item.job_uid)
            except ClusterError as error:
                outcome.unwritten.add(item.job_uid)
                if isinstance(error, ApiError) and error.code in _REFUSALS - {403}:  # of this object alone
                    _LOG.error("write refused", extra={"job": item.job_uid, "why": str(error)})
                    outcome.refused += 1
                    outcome.later.add(item.job_uid)
                else:
                    outcome.trouble = error

    # ---- one object

    async def _object(self, item: ObjectWrites, outcome: Outcome) -> bool:
        """All writes of one object; False when its status was refused."""
        pods: list[CreatePod | DeletePod] = []
        for write in item.writes:
            if isinstance(write, WriteStatus):
                if not await self._status(write):
                    return False
            elif isinstance(write, CreatePod | DeletePod):
                pods.append(write)
            elif isinstance(write, RecordEvent):
                self._record(write)
            elif isinstance(write, WriteQueueStatus):
                await self._queue_status(write)
            elif isinstance(write, WriteFlavorStatus):
                await self._flavor_status(write)
        if pods:
            await self._pods(item.job_uid, pods, outcome)
        for write in item.writes:
            if isinstance(write, RemoveJob):
                await self._remove(write.job_uid)
        return True

    async def _status(self, write: WriteStatus) -> bool:
        known = self.sight.jobs.known(write.job_uid)
        if known is None or known.job.metadata.resource_version != write.resource_version:
            return False
        patch = status_patch(known.job.status, write.status, write.resource_version)
        path = TRAINING_JOBS.path(known.namespace, known.job.metadata.name, "status")
        try:
            answer = await self.api.patch(path, msgspec.json.encode(patch))
        except ApiError as error:
            if error.code in (404, 409):
                return False
            raise
        self.sight.jobs.wrote(write.job_uid, write.status, _version(answer))
        self.wrote(known.job, write.status)
        return True

    async def _queue_status(self, write: WriteQueueStatus) -> None:
        queue = self.sight.queues.get(write.queue)
        if queue is not None:
            patch = msgspec.json.encode(
                {"status": write.status.model_dump(mode="json", by_alias=True, exclude_none=True)}
            )
            version = await _unless_gone(self.api.patch(QUEUES.path(None, write.queue, "status"), patch))
            if version is not None:
                self.sight.queues.wrote(write.queue, version, {"status": write.status})

    async def _flavor_status(self, write: WriteFlavorStatus) -> None:
        flavor = self.sight.flavors.get(write.flavor)
        if flavor is not None:
            patch = msgspec.json.encode(
                {"status": write.status.model_dump(mode="json", by_alias=True, exclude_none=True)}
            )
            version = await _unless_gone(self.api.patch(FLAVORS.path(None, write.flavor, "status"), patch))
            if version is not None:
                self.sight.flavors.wrote(write.flavor, version, {"status": write.status})

    def _record(self, event: RecordEvent) -> None:
        known = self.sight.jobs.known(event.job_uid)
        if known is not None:
            manifest = event_manifest(known.job, event, time.time(), self.instance)
            self.outbox.add(Letter(known.namespace, manifest))

    async def _remove(self, uid: str) -> None:
        """Delete a job whose time is over. One that a user deletes goes by itself once its pods are gone."""
        known = self.sight.jobs.known(uid)
        if known is None or known.job.metadata.deletion_timestamp is not None:
            return
        meta = known.job.metadata
        preconditions = {"uid": uid, "resourceVersion": meta.resource_version}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        path = TRAINING_JOBS.path(known.namespace, meta.name)
        await _unless_gone(self.api.delete(path, msgspec.json.encode(options)))

    # ---- pods

    async def _pods(self, uid: str, writes: Sequence[CreatePod | DeletePod], outcome: Outcome) -> None:
        known = self.sight.jobs.known(uid)
        if known is None:
            return
        if uid not in self._served and needs_service(known.job) and any(isinstance(one, CreatePod) for one in writes):
            await self._service(known)
        if len(writes) == 1:
            await self._pod(known, writes[0], outcome)
            return
        results = await asyncio.gather(*(self._pod(known, one, outcome) for one in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _pod(self, known: KnownJob, write: CreatePod | DeletePod, outcome: Outcome) -> None:
        await (self._create(known, write, outcome) if isinstance(write, CreatePod) else self._delete(known, write))

    async def _service(self, known: KnownJob) -> None:
        body = msgspec.json.encode(service_manifest(known.job))
        try:
            await self.api.post(SERVICES.path(known.namespace), body, accept=METADATA_ONLY)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        if len(self._served) >= _SERVED_MOST:
            self._served.clear()  # only costs asking again
        self._served.add(known.uid)

    async def _create(self, known: KnownJob, write: CreatePod, outcome: Outcome) -> None:
        if write.role not in known.templates:
            return
        flavor = self.sight.flavors.get(write.flavor)
        tolerations = flavor.spec.tolerations if flavor is not None else []
        manifest = pod_manifest(known.job, known.templates[write.role].document, write, tolerations, self.choices)
        try:
            answer = await self.api.post(
                PODS.path(known.namespace), msgspec.json.encode(manifest), accept=METADATA_ONLY
            )
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return
            if error.code not in _REFUSALS:
                raise
            outcome.later.add(known.uid)
            if self.dry_runs.refused(known, write.role, error.message):
                _LOG.warning("pod refused", extra={"pod": write.name, "why": error.message})
                self._record(RecordEvent(known.uid, "Warning", "PodRejected", error.message))
            return
        meta = msgspec.json.decode(answer, type=Pod).metadata
        request = pod_request(known.templates[write.role].model.spec)
        self.sight.pods.created(created_pod(meta, known.uid, write.node, request))

    async def _delete(self, known: KnownJob, write: DeletePod) -> None:
        pod = self.sight.pods.of_job(known.uid, write.name)
        if pod is None:
            return
        grace_s = 0 if write.force else round(write.grace_s)
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}
        path = PODS.path(known.namespace, write.name)
        version = await _unless_gone(self.api.delete(path, msgspec.json.encode(options)))
        if version is not None:
            self.sight.pods.deleted(pod, version)


async def _unless_gone(call: Any) -> int | None:
    """The version after the call; None when there is nothing of that name, uid and version any more."""
    try:
        return _version(await call)
    except ApiError as error:
        if error.code in (404, 409):
            return None
        raise


def _version(answer: bytes) -> int:
    return msgspec.json.decode(answer, type=_Written).metadata.version
