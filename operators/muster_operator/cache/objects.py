"""Cache of objects of other kinds that queue, and of the Workloads that have their statuses.

An object takes part while it has the label `muster.dev/queue` and its namespace has opted in, or while it is admitted.
One whose controller is itself such an object does not: only the outermost one queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from muster.api import spec
from muster.api.spec import QueueingStatus
from muster.api.spec.limits import MAX_ROLES_BYTES, size_error
from muster.api.yaml_input.undecodable import decode_truncated
from muster.cluster import PodView
from muster.kinds.suspended.numbering import number_pods
from muster.kinds.suspended.read import ObjectState, at_path, read_object
from muster.kinds.suspended.table import NAMESPACE_LABEL, QUEUE_LABEL, KindRow
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kube.objects import RawCustomObject, RawQueuedObject, V1PodMeta
from muster.usage.segments import USER_LABEL
from muster.workload.conditions import is_admitted
from muster_operator.cache.cached_object import CachedObject, StoredStatus, WatchedObject, record_name
from muster_operator.cache.cached_pod import PodOwner
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache
from muster_operator.cache.object_pods import object_pod_owner
from muster_operator.cache.specs import count_json

_MAX_ERROR = 500  # characters


@dataclass(slots=True)
class _Entry:
    known: CachedObject
    visible: SuspendedWorkload | None = None


class ObjectHandler(WatchedCache[WatchedObject]):
    """Event handler of one kind."""

    def __init__(self, row: KindRow, changed: Callable[[WatchedObject | None, WatchedObject | None], None]) -> None:
        self.row = row
        self._cache = MutationCache[WatchedObject](lambda key, old, new: changed(old, new))

    def on_upsert(self, item: RawQueuedObject) -> None:
        """An object was created or changed."""
        key, version = item.metadata.key, item.metadata.version
        if self._cache.is_newer(key, version):
            self._cache.upsert(key, version, _read(self.row, item))

    def on_read(self, item: RawQueuedObject) -> None:
        """A GET or a write returned the object; watches may have delivered newer states."""
        if not self._cache.is_deleted(item.metadata.key, item.metadata.version):
            self.on_upsert(item)


class StatusHandler(WatchedCache[StoredStatus]):
    """Event handler of Workloads."""

    def __init__(self, changed: Callable[[StoredStatus | None, StoredStatus | None], None]) -> None:
        self._cache = MutationCache[StoredStatus](lambda key, old, new: changed(old, new))

    def on_upsert(self, item: RawCustomObject) -> None:
        """A Workload was created or changed. Raises where it cannot be read: the operator alone writes them."""
        key, version = item.metadata.key, item.metadata.version
        if not self._cache.is_newer(key, version):
            return
        before, text = self._cache.get(key), bytes(item.status)
        if before is not None and before.status_text == text:
            status = before.status
        else:
            status = QueueingStatus.model_validate_json(text)
            if before is not None and before.status == status:
                status = before.status
        metadata = spec.ObjectMeta.model_validate(msgspec.structs.asdict(item.metadata) | {"labels": {}})
        read = spec.WorkloadSpec.model_validate_json(bytes(item.spec))
        self._cache.upsert(key, version, StoredStatus(metadata, read, status, text))

    def on_read(self, item: RawCustomObject) -> None:
        """A GET returned the Workload; watches may have delivered newer states."""
        if not self._cache.is_deleted(item.metadata.key, item.metadata.version):
            self.on_upsert(item)

    def on_written(self, stored: StoredStatus) -> None:
        """Our write was acknowledged."""
        key = f"{stored.metadata.namespace}/{stored.metadata.name}"
        self._cache.on_written(key, int(stored.metadata.resource_version), stored)


class ObjectCache:
    """The objects of all kinds by uid. `set_visible(uid, visible)` is called when the engine begins or ceases to see
    one, `changed` on any change; `namespaces()`: labels of namespaces by name, the same mapping until one changes;
    `on_removed`: with the last state of one that has a status."""

    def __init__(
        self,
        rows: Sequence[KindRow],
        namespaces: Callable[[], Mapping[str, Mapping[str, str]]],
        set_visible: Callable[[str, bool], None],
        changed: Callable[[], None],
        on_removed: Callable[[CachedObject], None] = lambda known: None,
    ) -> None:
        self._namespaces = namespaces
        self._set_visible = set_visible
        self._changed = changed
        self._on_removed = on_removed
        self.handlers = tuple(ObjectHandler(row, self._on_object) for row in rows)
        self.statuses = StatusHandler(self._on_status)
        self._by_uid: dict[str, _Entry] = {}
        self._stored: dict[str, StoredStatus] = {}  # by uid of the object
        self._workloads: tuple[SuspendedWorkload, ...] = ()
        self._seen: tuple[object, ...] | None = None  # what `_workloads` was made from, itself aside
        self._stale = False

    # ---- what is known

    def get(self, uid: str) -> CachedObject | None:
        """An object that takes part; None also for one that is not visible."""
        entry = self._by_uid.get(uid)
        return None if entry is None else entry.known

    def all(self) -> Iterable[CachedObject]:
        """All that have the label."""
        return (entry.known for entry in self._by_uid.values())

    def owner_of(self, meta: V1PodMeta) -> PodOwner | None:
        """The object that a pod belongs to."""
        return object_pod_owner([handler.row for handler in self.handlers], meta)

    def numbered(self, uid: str, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """The pods of an object with the indexes of their places; those of other jobs as they are."""
        entry = self._by_uid.get(uid)
        if entry is None or entry.visible is None:
            return pods
        return number_pods(entry.known.status, entry.visible.needed(), pods)

    # ---- what the engine sees

    def workloads(self) -> tuple[SuspendedWorkload, ...]:
        """All that take part."""
        seen = (self._namespaces(),)
        if self._stale or self._seen is None or self._seen[0] is not seen[0]:
            self._stale, self._seen = False, seen
            for uid, entry in self._by_uid.items():
                self._update(uid, entry)
            self._workloads = tuple(entry.visible for entry in self._by_uid.values() if entry.visible is not None)
        return self._workloads

    def rejections(self) -> dict[str, str]:
        """Why objects that take part cannot be read, by uid."""
        entries = self._by_uid.items()
        return {
            uid: one.known.object.error for uid, one in entries if one.visible is not None and one.known.object.error
        }

    def _update(self, uid: str, entry: _Entry) -> None:
        known, before = entry.known, entry.visible
        takes_part = is_admitted(known.status) or (
            self._namespaces().get(known.namespace, {}).get(NAMESPACE_LABEL) == "enabled"
            and known.object.owner_uid not in self._by_uid
        )
        if takes_part:
            fresh = known.workload
            entry.visible = before if before is not None and _same(before, fresh) else fresh
        else:
            entry.visible = None
        if (before is None) != (entry.visible is None):
            self._set_visible(uid, entry.visible is not None)

    # ---- our own writes

    def on_status_written(self, uid: str, status: QueueingStatus, version: int) -> None:
        known = self.get(uid)
        if known is None:
            return
        meta = known.metadata.model_copy(
            update={
                "name": record_name(known.object.row, known.metadata.name, uid),
                "uid": "",
                "labels": {},
                "resource_version": str(version),
            }
        )
        reference = spec.WorkloadReference(
            api_version=known.object.row.api_version,
            kind=known.object.row.kind,
            name=known.metadata.name,
            uid=uid,
        )
        written = spec.WorkloadSpec.model_construct(object_ref=reference, queue=known.queue)
        self.statuses.on_written(StoredStatus(meta, written, status, None))

    def assume_status(self, uid: str, status: QueueingStatus) -> None:
        self._replace(uid, status)

    def end_assumption(self, uid: str) -> None:
        self._replace(uid, None)

    def _replace(self, uid: str, assumed: QueueingStatus | None) -> None:
        entry = self._by_uid.get(uid)
        if entry is not None and entry.known.assumed is not assumed:
            entry.known = replace(entry.known, assumed=assumed)
            self._mark_stale()

    # ---- events

    def _on_object(self, old: WatchedObject | None, new: WatchedObject | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            entry = self._by_uid.pop(old.uid)
            if entry.visible is not None:
                self._set_visible(old.uid, False)
            self._on_removed(entry.known)
        if new is not None:
            entry_now = self._by_uid.get(new.uid)
            if entry_now is None:
                self._by_uid[new.uid] = _Entry(CachedObject(new, self._stored_of(new)))
            else:
                entry_now.known = replace(entry_now.known, object=new)
        self._mark_stale()

    def _on_status(self, old: StoredStatus | None, new: StoredStatus | None) -> None:
        for one in (old, new):
            if one is None:
                continue
            uid = one.spec.object_ref.uid
            if one is new:
                self._stored[uid] = one
            elif new is None or new.spec.object_ref.uid != uid:
                self._stored.pop(uid, None)
            entry = self._by_uid.get(uid)
            if entry is not None:
                entry.known = replace(entry.known, stored=self._stored_of(entry.known.object), assumed=None)
        self._mark_stale()

    def _stored_of(self, one: WatchedObject) -> StoredStatus | None:
        """The Workload of an object: of its uid, and under the name that it has."""
        found = self._stored.get(one.uid)
        if found is None or found.metadata.namespace != one.metadata.namespace:
            return None
        return found if found.metadata.name == record_name(one.row, one.metadata.name, one.uid) else None

    def _mark_stale(self) -> None:
        self._stale = True
        self._changed()


def _same(a: SuspendedWorkload, b: SuspendedWorkload) -> bool:
    return a.metadata.resource_version == b.metadata.resource_version and a.status is b.status


def _read(row: KindRow, item: RawQueuedObject) -> WatchedObject:
    """The object; one that cannot be read says why, and is held."""
    meta = item.metadata
    owner = next((one.uid for one in meta.owner_references if one.controller), "")
    user = meta.labels.get(USER_LABEL, "")
    fields = {name: getattr(meta, name) for name in _META_FIELDS} | {"labels": {USER_LABEL: user} if user else {}}
    metadata = spec.ObjectMeta.model_validate(fields)
    queue = meta.labels.get(QUEUE_LABEL, "")
    if (fault := _too_large(item.spec)) is not None:
        return WatchedObject(row, metadata, owner, ObjectState(queue, _is_suspended(row, item.spec), ()), fault)
    document: dict[str, object] = {"metadata": {"labels": meta.labels, "annotations": meta.annotations}}
    try:
        document["spec"] = decode_truncated(msgspec.json.decode, item.spec)
        document["status"] = decode_truncated(msgspec.json.decode, item.status)
        return WatchedObject(row, metadata, owner, read_object(row, document))
    except Exception as error:  # whatever an arbitrary document may cause
        suspended = at_path(document, row.suspend) is True
        why = str(error)[:_MAX_ERROR] or type(error).__name__
        return WatchedObject(row, metadata, owner, ObjectState(queue, suspended, ()), why)


def _too_large(text: msgspec.Raw) -> str | None:
    """Why a spec is not decoded: any user may write many that take much time."""
    size = len(bytes(text))
    values = count_json(text)[0] if size <= MAX_ROLES_BYTES else 0
    return size_error(values, size, "spec")


def _is_suspended(row: KindRow, text: msgspec.Raw) -> bool:
    """What a spec says at the path of `suspend`, without decoding the rest."""
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    try:
        for name in row.suspend.split(".")[1:]:
            text = decode_truncated(fields.decode, text)[name]
    except (KeyError, msgspec.MsgspecError):
        return False
    return bytes(text) == b"true"


_META_FIELDS = (
    "name",
    "namespace",
    "uid",
    "resource_version",
    "generation",
    "creation_timestamp",
    "deletion_timestamp",
    "finalizers",
)
