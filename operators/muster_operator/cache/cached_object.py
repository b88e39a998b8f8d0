"""An object of another kind that queues, with the Workload that has its status."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from muster.api.spec import API_VERSION, ObjectMeta, QueueingStatus, WorkloadSpec
from muster.kinds.suspended.read import ObjectState
from muster.kinds.suspended.table import KindRow
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kube.resources import WORKLOADS, Resource
from muster.workload.conditions import is_admitted
from muster_operator.cache.cached_pod import JobKey
from muster_operator.cache.cached_workload import StatusRequest
from muster_operator.cache.status_patch import changed_fields

_MAX_NAME = 230  # of the object, in the name of its Workload


def resource_of(row: KindRow) -> Resource:
    """The resource of a kind."""
    return Resource(row.group, row.version, row.plural, row.kind, True)


def record_name(row: KindRow, name: str, uid: str) -> str:
    """Name of the Workload of an object: `<kind>-<name>-<hash5(uid)>`."""
    return f"{row.kind.lower()}-{name[:_MAX_NAME].rstrip('.-')}-{hashlib.sha256(uid.encode()).hexdigest()[:5]}"


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """A Workload: the status of the object with uid `spec.object_ref.uid`."""

    metadata: ObjectMeta
    spec: WorkloadSpec
    status: QueueingStatus
    status_text: bytes | None  # None after a write of our own


@dataclass(frozen=True, slots=True)
class WatchedObject:
    """An object as its kind reads it. `error`: why it cannot be read; then `state` says only where it queues, and
    whether it is suspended."""

    row: KindRow
    metadata: ObjectMeta
    owner_uid: str  # of the object that controls it
    state: ObjectState
    error: str = ""

    @property
    def uid(self) -> str:
        return self.metadata.uid


@dataclass(frozen=True, slots=True)
class CachedObject:
    """See `CachedWorkload`. `stored` None: it has no Workload yet. `assumed`: an admission without an answer. `shown`:
    the object that its controller has created, and that has its templates, of a kind where this is so."""

    object: WatchedObject
    stored: StoredStatus | None = None
    assumed: QueueingStatus | None = None
    shown: WatchedObject | None = None

    @property
    def uid(self) -> str:
        return self.object.uid

    @property
    def name(self) -> JobKey:
        return JobKey(self.uid, self.namespace, self.metadata.name, other_kind=True)

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.metadata.name}"

    @property
    def resource(self) -> Resource:
        return resource_of(self.object.row)

    @property
    def metadata(self) -> ObjectMeta:
        return self.object.metadata

    @property
    def workload(self) -> SuspendedWorkload:
        state = self.object.state
        if state.queue != self.queue:
            state = replace(state, queue=self.queue)
        if self._shown is not None:
            state = replace(state, pod_sets=self._shown.state.pod_sets)
        metadata = self.metadata.model_copy(update={"resource_version": self.version})
        return SuspendedWorkload(self.object.row, metadata, self.metadata.resource_version, state, self.status)

    @property
    def _shown(self) -> WatchedObject | None:
        return None if self.object.row.shown_by is None else self.shown

    @property
    def error(self) -> str:
        """Why it cannot be admitted as it is."""
        other = self.object.row.shown_by
        if self.object.error or other is None:
            return self.object.error
        if self.shown is None:
            return f"its controller has not created its {other.kind} yet, which shows its pods"
        return self.shown.error

    @property
    def queue(self) -> str:
        """The label; while it is admitted the queue in which it was."""
        if self.stored is not None and self.stored.spec.queue and is_admitted(self.status):
            return self.stored.spec.queue
        return self.object.state.queue

    @property
    def status(self) -> QueueingStatus:
        return self.acknowledged_status if self.assumed is None else self.assumed

    @property
    def acknowledged_status(self) -> QueueingStatus:
        return _NEW if self.stored is None else self.stored.status

    @property
    def version(self) -> str:
        stored = "" if self.stored is None else self.stored.metadata.resource_version
        shown = "" if self._shown is None else f"/{self._shown.uid}.{self._shown.metadata.generation}"
        return f"{self.metadata.resource_version}/{stored}{shown}"

    @property
    def paths(self) -> tuple[str, ...]:
        return self.resource.path(self.namespace, self.metadata.name), self._record_path

    @property
    def _record_name(self) -> str:
        return record_name(self.object.row, self.metadata.name, self.uid)

    @property
    def _record_path(self) -> str:
        return WORKLOADS.path(self.namespace, self._record_name)

    def status_request(self, status: QueueingStatus, *, guarded: bool = True) -> StatusRequest:
        """See `CachedWorkload`: a patch of its Workload, or its creation. It has no owner: it outlasts its object until
        no pod is left (`muster_operator.writes.left_workloads`)."""
        if self.stored is None:
            return StatusRequest(self._record_path, self._manifest(status), WORKLOADS.path(self.namespace))
        body: dict[str, Any] = {"status": changed_fields(self.stored.status, status)}
        if self.stored.spec.queue != self.queue:
            body["spec"] = {"queue": self.queue}
        if guarded:
            body["metadata"] = {"resourceVersion": self.stored.metadata.resource_version}
        return StatusRequest(self._record_path, body)

    def _manifest(self, status: QueueingStatus) -> dict[str, Any]:
        row, name = self.object.row, self.metadata.name
        reference = {"apiVersion": row.api_version, "kind": row.kind, "name": name, "uid": self.uid}
        meta = {"name": self._record_name, "namespace": self.namespace}
        return {
            "apiVersion": API_VERSION,
            "kind": WORKLOADS.kind,
            "metadata": meta,
            "spec": {"objectRef": reference, "queue": self.queue},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }


_NEW = QueueingStatus()
