"""Tells whoever wrote something that it cannot be read: a condition with reason InvalidSpec, an Event, a log line.

A job says so in Admitted=False. One that has room keeps it, and its conditions: it is decided about as it was before
the edit (`sight.jobs`), so only the Event tells; if it loses the room, the engine writes why it gets none again. A
queue says so in Active=False, which the engine writes, and a flavor in Readable=False. A job whose templates are too
much for its namespace is told so in the same way, and is read again once they are not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
from pydantic import ValidationError

from muster import spec
from muster.cluster import RecordEvent
from muster.documents.shorn import decoded
from muster.lifecycle import is_finished, set_condition
from muster.lifecycle.conditions import ADMITTED, put
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import FLAVORS, QUEUES, TRAINING_JOBS, Resource
from muster_operator.manifests.events import event_manifest
from muster_operator.manifests.status import difference, status_patch
from muster_operator.outbox import Letter, Outbox
from muster_operator.refusals import Refusals, concerns_everybody
from muster_operator.sight.documents import Faulty
from muster_operator.sight.known_job import INVALID, has_room
from muster_operator.sight.shapes import Job
from muster_operator.sight.unreadable import Unreadable
from muster_operator.sight.world import Sight
from muster_operator.sight.written import written

READABLE = "Readable"
_LOG = logging.getLogger("muster.operator")
_LONGEST = 4096  # of a condition's message; an Event holds less and is cut


class _Jobs(msgspec.Struct):
    items: list[Job] = []


_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(slots=True)
class Complaints:
    """What is said of objects that cannot be read."""

    api: Api
    sight: Sight
    outbox: Outbox
    instance: str
    clock: Callable[[], float] = time.time
    refusals: Refusals = field(default_factory=Refusals)
    _told: set[tuple[str, int]] = field(default_factory=set)  # uid and generation of what has had its Event

    async def settle(self) -> None:
        """Tell what was not told yet, and of flavors that they can be read again. Raises ClusterError for what is no
        single object's trouble."""
        jobs, queues, flavors = self.sight.jobs, self.sight.queues, self.sight.flavors
        for key, one in tuple(jobs.broken.items()):
            if jobs.fits_now(one):
                await self._read_again(key, one)
                continue
            status = jobs.status_of(one)
            if status is not None and is_finished(status):
                continue
            if status is None or has_room(status) or jobs.known(one.metadata.uid) is not None:
                self._tell_once(TRAINING_JOBS, one)
            else:
                await self._complain(key, one, status)
        for faulty in tuple(queues.broken.values()):
            self._tell_once(QUEUES, faulty)
        for faulty in tuple(flavors.broken.values()):
            self._tell_once(FLAVORS, faulty)
            await self._condemn(faulty)
        for flavor in flavors.all():
            if any(
                condition.type == READABLE and condition.status == "False" for condition in flavor.status.conditions
            ):
                await self._absolve(flavor)
        if not (jobs.broken or queues.broken or flavors.broken):
            self._told.clear()

    async def _read_again(self, key: str, one: Unreadable) -> None:
        """By a list of one: the operator has no right to get single objects."""
        query = {"fieldSelector": f"metadata.name={one.metadata.name}"}
        answer = await self.api.read(TRAINING_JOBS.path(one.metadata.namespace), query)
        for item in decoded(_jobs.decode, answer).items:
            if item.metadata.uid == one.metadata.uid and self.sight.jobs.broken.get(key) is one:
                self.sight.jobs.put(item)

    async def _complain(self, key: str, one: Unreadable, status: spec.TrainingJobStatus) -> None:
        meta = one.metadata
        wanted = status.model_copy(
            update={"observed_generation": meta.generation, "queue_position": None, "estimated_start": None}
        )
        wanted = set_condition(wanted, ADMITTED, False, INVALID, one.complaint[:_LONGEST], self.clock())
        if wanted == status:
            return
        path = TRAINING_JOBS.path(meta.namespace, meta.name, "status")
        version = await self._patch(path, msgspec.json.encode(status_patch(status, wanted, meta.resource_version)))
        if version is not None:
            told = meta.model_copy(update={"resource_version": version})
            self.sight.jobs.complained(key, one, replace(one, metadata=told, status=wanted))
            self._tell(TRAINING_JOBS, one)

    async def _condemn(self, one: Faulty) -> None:
        """Say in a flavor's status that it cannot be read."""
        meta = one.metadata
        try:
            status = spec.FlavorStatus.model_validate(one.document["status"])
        except ValidationError:
            status = spec.FlavorStatus()
        message = one.complaint[:_LONGEST]
        version, wanted = await self._judge(meta, status, readable=False, reason=INVALID, message=message)
        if version is not None:
            told = meta.model_copy(update={"resource_version": version})
            document = {**one.document, "status": wanted.model_dump(mode="json", by_alias=True, exclude_none=True)}
            self.sight.flavors.complained(one, replace(one, metadata=told, document=document))

    async def _absolve(self, flavor: spec.Flavor) -> None:
        """Say in a flavor's status that it can be read again."""
        version, wanted = await self._judge(flavor.metadata, flavor.status, readable=True, reason="Mended", message="")
        if version is not None:
            self.sight.flavors.wrote(flavor.metadata.name, int(version), {"status": wanted})

    async def _judge(
        self, meta: spec.ObjectMeta, status: spec.FlavorStatus, *, readable: bool, reason: str, message: str
    ) -> tuple[str | None, spec.FlavorStatus]:
        """Write the condition, unless it is there; its version if it was written."""
        conditions = put(status.conditions, READABLE, readable, reason, message, self.clock(), meta.generation)
        if conditions is status.conditions:
            return None, status
        wanted = status.model_copy(update={"conditions": conditions})
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": difference(status, wanted)}
        path = FLAVORS.path(None, meta.name, "status")
        return await self._patch(path, msgspec.json.encode(patch)), wanted

    async def _patch(self, path: str, patch: bytes) -> str | None:
        """The version after the write; None where the object changed meanwhile (the watch wakes us), or the API server
        refuses the write: it is tried again after a pause."""
        if not self.refusals.may_try(path):
            return None
        try:
            answer = await self.api.patch(path, patch)
        except ApiError as error:
            if concerns_everybody(error):
                raise
            if error.code not in (404, 409):
                self.refusals.write_refused(path, error)
            return None
        self.refusals.over(path)
        return written(answer).resource_version

    def _tell_once(self, of: Resource, one: Unreadable | Faulty) -> None:
        mark = one.metadata.uid, one.metadata.generation
        if mark not in self._told:
            self._told.add(mark)
            self._tell(of, one)

    def _tell(self, of: Resource, one: Unreadable | Faulty) -> None:
        meta = one.metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        kind = "job" if of is TRAINING_JOBS else of.kind.lower()
        _LOG.error(f"{kind} cannot be read", extra={kind: name, "why": one.complaint})
        event = RecordEvent(meta.uid, "Warning", INVALID, one.complaint)
        manifest = event_manifest(meta, event, self.clock(), self.instance, of)
        self.outbox.add(Letter(meta.namespace or "default", manifest))
