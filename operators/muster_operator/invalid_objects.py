"""Reports objects that cannot be read: a condition with reason InvalidSpec, an Event and a log line. Kinds that are not
installed: an Event.

A job has Admitted=False. A job with capacity keeps it and its conditions: the engine uses the spec from before the edit
(`cache.jobs`), so only the Event reports the error; if it loses the capacity, the engine writes why it is not admitted
again. A queue has Active=False, which the engine writes, and a flavor Valid=False. A job whose templates exceed the
limit of its namespace is reported in the same way, and read again once they fit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
from pydantic import ValidationError

from muster.api import spec
from muster.cluster import RecordEvent
from muster.kube.objects import RawCustomObject
from muster.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, FLAVORS, QUEUES, TRAINING_JOBS, Resource
from muster.workload.conditions import ADMITTED, is_finished, set_condition, with_condition
from muster_operator.cache.cached_job import INVALID, holds_capacity
from muster_operator.cache.cached_object import resource_of
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.custom_objects import InvalidObject
from muster_operator.cache.job_reader import InvalidJob
from muster_operator.cache.status_patch import changed_fields, status_patch
from muster_operator.events import EventRecorder, event_manifest
from muster_operator.informers import read_by_name
from muster_operator.pending_events import PendingEvent
from muster_operator.writes.queue import WriteQueue

VALID = "Valid"
_LOG = logging.getLogger("muster.operator")
_MAX_MESSAGE = 4096  # of a condition's message; an Event is truncated further


@dataclass(slots=True)
class InvalidObjectReporter:
    """Writes the reports."""

    cache: ClusterCache
    queue: WriteQueue
    events: EventRecorder
    instance: str
    clock: Callable[[], float] = time.time
    _missing: set[Resource] = field(default_factory=set)  # kinds of which the last Event says that they are
    _reported: set[tuple[str, int]] = field(default_factory=set)  # uid and generation of objects that have an Event

    async def report(self) -> None:
        """Report new errors, and flavors that are valid again. Raises ClusterError for errors that affect all
        objects."""
        jobs, queues, flavors = self.cache.jobs, self.cache.queues, self.cache.flavors
        for key, one in tuple(jobs.invalid.items()):
            if jobs.fits_now(one):
                await self._read_again(key, one)
                continue
            status = jobs.status_of(one)
            if status is not None and is_finished(status):
                continue
            if status is None or holds_capacity(status) or jobs.get(one.metadata.uid) is not None:
                self._record_event_once(TRAINING_JOBS, one)
            else:
                await self._report_job(key, one, status)
        for invalid in tuple(queues.invalid.values()):
            self._record_event_once(QUEUES, invalid)
        for invalid in tuple(flavors.invalid.values()):
            self._record_event_once(FLAVORS, invalid)
            await self._report_invalid_flavor(invalid)
        for flavor in flavors.all():
            if any(condition.type == VALID and condition.status == "False" for condition in flavor.status.conditions):
                await self._report_valid_flavor(flavor)
        self._report_kinds()
        jobs_now, queues_now, flavors_now = (map(_version, kind.invalid.values()) for kind in (jobs, queues, flavors))
        self._reported &= {*jobs_now, *queues_now, *flavors_now}

    def _report_kinds(self) -> None:
        """Record an Event once a kind of queuedKinds was found not to be installed, and once it is."""
        for handler in self.cache.objects.handlers:
            kind = resource_of(handler.row)
            if handler.exists == (kind not in self._missing):
                continue
            self._missing ^= {kind}
            message = f"objects of {kind.full_name} queue from now on"
            event = RecordEvent("", "Normal", "KindInstalled", message)
            if not handler.exists:
                message = f"{kind.full_name} is not installed: no object of it queues; it is looked for every 10 s"
                event = RecordEvent("", "Warning", "KindNotInstalled", message)
            meta = spec.ObjectMeta(name=kind.full_name)
            manifest = event_manifest(meta, event, self.clock(), self.instance, CUSTOM_RESOURCE_DEFINITIONS)
            self.events.enqueue(PendingEvent("default", manifest))

    async def _read_again(self, key: str, one: InvalidJob) -> None:
        path = TRAINING_JOBS.path(one.metadata.namespace)
        for item in await read_by_name(self.queue.api, path, one.metadata.name, RawCustomObject):
            if item.metadata.uid == one.metadata.uid and self.cache.jobs.invalid.get(key) is one:
                self.cache.jobs.on_upsert(item)

    async def _report_job(self, key: str, one: InvalidJob, status: spec.TrainingJobStatus) -> None:
        meta = one.metadata
        wanted = status.model_copy(
            update={"observed_generation": meta.generation, "queue_position": None, "estimated_start": None}
        )
        wanted = set_condition(wanted, ADMITTED, False, INVALID, one.error[:_MAX_MESSAGE], self.clock())
        if wanted == status:
            return
        path = TRAINING_JOBS.path(meta.namespace, meta.name, "status")
        version = await self._patch(path, msgspec.json.encode(status_patch(status, wanted, meta.resource_version)))
        if version is not None:
            metadata = meta.model_copy(update={"resource_version": version})
            self.cache.jobs.on_reported(key, one, replace(one, metadata=metadata, status=wanted))
            self._record_event(TRAINING_JOBS, one)

    async def _report_invalid_flavor(self, one: InvalidObject) -> None:
        """Write Valid=False with the error."""
        meta = one.metadata
        try:
            status = spec.FlavorStatus.model_validate(one.document["status"])
        except ValidationError:
            status = spec.FlavorStatus()
        message = one.error[:_MAX_MESSAGE]
        version, wanted = await self._write_condition(meta, status, valid=False, reason=INVALID, message=message)
        if version is not None:
            metadata = meta.model_copy(update={"resource_version": version})
            document = {**one.document, "status": wanted.model_dump(mode="json", by_alias=True, exclude_none=True)}
            self.cache.flavors.on_reported(one, replace(one, metadata=metadata, document=document))

    async def _report_valid_flavor(self, flavor: spec.Flavor) -> None:
        """Write Valid=True."""
        version, wanted = await self._write_condition(
            flavor.metadata, flavor.status, valid=True, reason="Valid", message=""
        )
        if version is not None:
            self.cache.flavors.on_written(flavor.metadata.name, int(version), {"status": wanted})

    async def _write_condition(
        self, meta: spec.ObjectMeta, status: spec.FlavorStatus, *, valid: bool, reason: str, message: str
    ) -> tuple[str | None, spec.FlavorStatus]:
        """Write the condition unless it is present; returns the new version if written."""
        conditions = with_condition(status.conditions, VALID, valid, reason, message, self.clock(), meta.generation)
        if conditions is status.conditions:
            return None, status
        wanted = status.model_copy(update={"conditions": conditions})
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": changed_fields(status, wanted)}
        path = FLAVORS.path(None, meta.name, "status")
        return await self._patch(path, msgspec.json.encode(patch)), wanted

    async def _patch(self, path: str, patch: bytes) -> str | None:
        """The version after the write; None if it was not written (`WriteQueue.patch`)."""
        written = await self.queue.patch(path, patch)
        return None if written is None else written.resource_version

    def _record_event_once(self, of: Resource, one: InvalidJob | InvalidObject) -> None:
        if (key := _version(one)) not in self._reported:
            self._reported.add(key)
            self._record_event(of, one)

    def _record_event(self, of: Resource, one: InvalidJob | InvalidObject) -> None:
        meta = one.metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        kind = "job" if of is TRAINING_JOBS else of.kind.lower()
        _LOG.error(f"{kind} cannot be read", extra={kind: name, "why": one.error})
        event = RecordEvent(meta.uid, "Warning", INVALID, one.error)
        manifest = event_manifest(meta, event, self.clock(), self.instance, of)
        self.events.enqueue(PendingEvent(meta.namespace or "default", manifest))


def _version(one: InvalidJob | InvalidObject) -> tuple[str, int]:
    return one.metadata.uid, one.metadata.generation
