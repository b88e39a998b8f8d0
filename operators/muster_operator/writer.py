"""Carries a round's writes out: many jobs side by side, each job's status before its pods.

The rules are those of `muster.cluster`. A round that takes long stops beginning jobs after a while: what was not
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
from muster_operator.admitting import Admitting
from muster_operator.doubts import Doubts
from muster_operator.dryrun import DryRuns
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import FLAVORS, QUEUES, TRAINING_JOBS
from muster_operator.manifests.events import event_manifest
from muster_operator.manifests.pods import PodChoices
from muster_operator.manifests.status import status_patch
from muster_operator.outbox import Letter, Outbox
from muster_operator.pending_events import PENDING, PendingEvents
from muster_operator.refusals import Refusals, concerns_everybody
from muster_operator.sight.admission import Seal
from muster_operator.sight.known_job import KnownJob
from muster_operator.sight.world import Sight
from muster_operator.sight.written import written
from muster_operator.staffing import Staffing

_LOG = logging.getLogger("muster.operator")
_TELLS_MORE = {"Completed": "Admitted", "Admitted": PENDING}  # an Event, and the one that is worth nothing after it


class Observer(Protocol):
    """Who is told of acknowledged statuses."""

    def __call__(self, before: spec.TrainingJob, status: spec.TrainingJobStatus) -> None:
        """The status of this job is written."""


class Telling(Protocol):
    """Who adds to statuses that are about to be written."""

    def __call__(self, known: KnownJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        """What is written of this job, instead of `status`."""


@dataclass(slots=True)
class Outcome:
    """`unwritten`: jobs whose status, or all, was not written; `conflicts`: how many statuses were refused, since
    something changed meanwhile."""

    unwritten: set[str] = field(default_factory=set)
    unborn: set[str] = field(default_factory=set)  # jobs that were not admitted, since their pod was not created
    later: set[str] = field(default_factory=set)  # jobs of which something is refused; `Refusals` says until when
    conflicts: int = 0
    refused: int = 0  # statuses that the API server does not take, for another reason
    trouble: ClusterError | None = None  # the API server could not be reached, or may not be written to

    @property
    def whole(self) -> bool:
        """Whether everything was written."""
        return not self.unwritten and self.trouble is None

    def join(self, other: Outcome) -> None:
        """What was written after it belongs to it."""
        self.unwritten |= other.unwritten
        self.unborn |= other.unborn
        self.later |= other.later
        self.conflicts += other.conflicts
        self.refused += other.refused
        self.trouble = self.trouble or other.trouble


@dataclass(slots=True)
class Writer:
    """Writes to the API server, and tells `sight` what was acknowledged."""

    api: Api
    sight: Sight
    dry_runs: DryRuns
    doubts: Doubts
    outbox: Outbox
    choices: PodChoices
    instance: str
    jobs_at_once: int = 64
    tells: Telling = lambda known, status: status
    wrote: Observer = lambda before, status: None
    busy: int = 0  # rounds under way: events wait for them
    refusals: Refusals = field(default_factory=Refusals)
    seal: Seal | None = None  # of what pods tell; None: every status comes before its pods
    staffing: Staffing = field(init=False)
    admitting: Admitting = field(init=False)
    pending: PendingEvents = field(init=False)

    def __post_init__(self) -> None:
        """The same parts write pods."""
        parts = self.api, self.sight, self.dry_runs, self.doubts, self.choices
        self.staffing = Staffing(*parts, self.record, self.refusals)
        self.admitting = Admitting(self.sight, self.staffing, self.refusals)
        self.pending = PendingEvents(self.sight, self.record)

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
                if isinstance(error, ApiError) and not concerns_everybody(error):
                    outcome.refused += 1
                    self._refused(_subject(item), error, outcome)
                else:
                    outcome.trouble = error
            except Exception as error:  # a bug that this object met: all others are written
                _LOG.exception("write failed", extra={"of": _subject(item)})
                outcome.unwritten.add(item.job_uid)
                outcome.refused += 1
                self._refused(_subject(item), ApiError(500, "", f"{type(error).__name__}: {error}"), outcome)

    def _refused(self, of: str, error: ApiError, outcome: Outcome) -> None:
        """Something of an object is refused, other than pods."""
        if of not in outcome.later:
            outcome.later.add(of)
            self.refusals.write_refused(of, error)

    # ---- one object

    async def _object(self, item: ObjectWrites, outcome: Outcome) -> bool:
        """All writes of one object; False when its status was refused."""
        if (how := await self._by_its_pod(item, outcome)) is not None:
            return how
        pods: list[CreatePod | DeletePod] = []
        for write in item.writes:
            if isinstance(write, WriteStatus):
                if not await self.put_status(write):
                    return False
            elif isinstance(write, CreatePod | DeletePod):
                pods.append(write)
            elif isinstance(write, RecordEvent):
                self.record(write)
            elif isinstance(write, WriteQueueStatus):
                await self._queue_status(write)
            elif isinstance(write, WriteFlavorStatus):
                await self._flavor_status(write)
        if any(isinstance(one, CreatePod) for one in pods) and not await self._tell_before_pods(item.job_uid):
            return False
        if pods:
            await self.staffing.carry_out(item.job_uid, pods, outcome.later)
        for write in item.writes:
            if isinstance(write, RemoveJob):
                await self._remove(write.job_uid, outcome)
        if (of := _subject(item)) not in outcome.later:
            self.refusals.over(of)
        return True

    async def _by_its_pod(self, item: ObjectWrites, outcome: Outcome) -> bool | None:
        """Admit a gang of one pod by its creation. False when the job was changed meanwhile; None where it is not to be
        admitted so: its status comes first."""
        alone = None if self.seal is None else self.admitting.of(item, self.seal)
        if alone is None or self.tells(alone.known, alone.status.status) is not alone.status.status:
            return None
        how = await self.admitting.carry_out(alone, outcome.later)
        if how == "status first":
            return None
        if how == "not now":
            outcome.unborn.add(item.job_uid)
        elif how == "admitted":
            self.pending.wrote(item.job_uid, alone.known.written, alone.status.status)
            self.wrote(alone.known.job, alone.status.status)
            for write in item.writes:
                if isinstance(write, RecordEvent):
                    self.record(write)
            self.refusals.over(item.job_uid)
        return how != "changed"

    async def _tell_before_pods(self, uid: str) -> bool:
        """Write the status of a job that its pod alone told of, before it gets another; False if that is refused."""
        known = self.sight.jobs.known(uid)
        if known is None or known.behind is None:
            return True
        return await self.put_status(WriteStatus(uid, known.job.status, known.job.metadata.resource_version or ""))

    async def put_status(self, write: WriteStatus) -> bool:
        """Write one status, unless the job was changed meanwhile (False). Raises as `Api.patch` does."""
        known = self.sight.jobs.known(write.job_uid)
        if known is None or known.job.metadata.resource_version != write.resource_version:
            return False
        status = self.tells(known, write.status)
        patch = status_patch(known.written, status, write.resource_version)
        name, body = known.job.metadata.name, msgspec.json.encode(patch)
        path = TRAINING_JOBS.path(known.namespace, name, "status")
        try:
            answer = await self.doubts.watch_over(
                TRAINING_JOBS.path(known.namespace, name), lambda: self.api.patch(path, body)
            )
        except ApiError as error:
            if error.code in (404, 409):
                return False
            raise
        self.sight.jobs.wrote(write.job_uid, status, written(answer).version)
        self.pending.wrote(write.job_uid, known.written, status)
        self.wrote(known.job, status)
        return True

    async def _queue_status(self, write: WriteQueueStatus) -> None:
        queue = self.sight.queues.get(write.queue)
        if queue is not None:
            path = QUEUES.path(None, write.queue, "status")
            version = await _unless_gone(self.api.patch(path, _guarded(queue, write.status)))
            if version is not None:
                self.sight.queues.wrote(write.queue, version, {"status": write.status})

    async def _flavor_status(self, write: WriteFlavorStatus) -> None:
        flavor = self.sight.flavors.get(write.flavor)
        if flavor is not None:
            path = FLAVORS.path(None, write.flavor, "status")
            version = await _unless_gone(self.api.patch(path, _guarded(flavor, write.status)))
            if version is not None:
                self.sight.flavors.wrote(write.flavor, version, {"status": write.status})

    def record(self, event: RecordEvent) -> None:
        """Have an Event told when there is time."""
        known = self.sight.jobs.known(event.job_uid)
        if known is not None:
            manifest = event_manifest(known.job.metadata, event, time.time(), self.instance)
            about = f"{event.job_uid} {event.reason}"
            instead = f"{event.job_uid} {_TELLS_MORE[event.reason]}" if event.reason in _TELLS_MORE else ""
            self.outbox.add(Letter(known.namespace, manifest, about, instead))

    async def _remove(self, uid: str, outcome: Outcome) -> None:
        """Delete a job whose time is over. One that a user deletes goes by itself once its pods are gone."""
        known = self.sight.jobs.known(uid)
        if known is None or known.job.metadata.deletion_timestamp is not None:
            return
        meta = known.job.metadata
        preconditions = {"uid": uid, "resourceVersion": meta.resource_version}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        path = TRAINING_JOBS.path(known.namespace, meta.name)
        try:
            await _unless_gone(self.api.delete(path, msgspec.json.encode(options)))
        except ApiError as error:
            if concerns_everybody(error):
                raise
            self._refused(uid, error, outcome)


def _subject(item: ObjectWrites) -> str:
    """Whose writes these are: a job's uid, or which queue or flavor."""
    first = item.writes[0]
    if isinstance(first, WriteQueueStatus):
        return f"queue {first.queue}"
    return f"flavor {first.flavor}" if isinstance(first, WriteFlavorStatus) else item.job_uid


def _guarded(of: spec.Queue | spec.Flavor, status: spec.QueueStatus | spec.FlavorStatus) -> bytes:
    """A status for the version that we have seen, and no other: an edit that lies between would be taken for older than
    our own write, and never be seen."""
    version = {"resourceVersion": of.metadata.resource_version}
    return msgspec.json.encode(
        {"metadata": version, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    )


async def _unless_gone(call: Any) -> int | None:
    """The version after the call; None when there is nothing of that name, uid and version any more."""
    try:
        return written(await call).version
    except ApiError as error:
        if error.code in (404, 409):
            return None
        raise
