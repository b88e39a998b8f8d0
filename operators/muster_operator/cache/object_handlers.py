"""Event handlers of objects of other kinds that queue, and of their Workloads: what of them is kept."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muster.api import spec
from muster.api.spec import QueueingStatus
from muster.api.spec.limits import MAX_ROLES_BYTES, size_error
from muster.api.yaml_input.undecodable import decode_truncated
from muster.kinds.suspended.read import ObjectState, at_path, read_object
from muster.kinds.suspended.table import QUEUE_LABEL, KindRow
from muster.kube.objects import RawCustomObject, RawQueuedObject
from muster.usage.segments import USER_LABEL
from muster_operator.cache.cached_object import StoredStatus, WatchedObject
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache
from muster_operator.cache.specs import count_json

_MAX_ERROR = 500  # characters


class ObjectHandler(WatchedCache[WatchedObject]):
    """Event handler of one kind. `shows_others`: its objects have the templates of objects of another kind, and are
    watched without the label too."""

    def __init__(
        self,
        row: KindRow,
        changed: Callable[[WatchedObject | None, WatchedObject | None], None],
        *,
        shows_others: bool = False,
        on_exists: Callable[[], None] = lambda: None,
    ) -> None:
        self.row = row
        self.shows_others = shows_others
        self._cache = MutationCache[WatchedObject](lambda key, old, new: changed(old, new))
        self._on_exists = on_exists
        self.exists = True
        """Whether its CRD was installed when it was last looked for."""

    def on_exists(self, exists: bool) -> None:
        """The API server was asked whether the kind exists."""
        if exists != self.exists:
            self.exists = exists
            self._on_exists()

    def on_upsert(self, item: RawQueuedObject) -> None:
        """An object was created or changed."""
        key, version = item.metadata.key, item.metadata.version
        if self._cache.is_newer(key, version):
            self._cache.upsert(key, version, _read(self.row, item))

    def has(self, stored: StoredStatus) -> bool:
        """Whether the object of a Workload has the label, or may have: False once watches have passed the Workload and
        do not have it."""
        meta, reference = stored.metadata, stored.spec.object_ref
        key = f"{meta.namespace}/{reference.name}"
        known = self._cache.get(key)
        if known is not None:
            return known.uid == reference.uid and known.state.queue != ""
        return not self._cache.is_deleted(key, int(meta.resource_version))

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

    def on_removed(self, stored: StoredStatus) -> None:
        """Our deletion of this Workload was acknowledged."""
        self._cache.delete(f"{stored.metadata.namespace}/{stored.metadata.name}", int(stored.metadata.resource_version))

    def on_written(self, stored: StoredStatus) -> None:
        key = f"{stored.metadata.namespace}/{stored.metadata.name}"
        self._cache.on_written(key, int(stored.metadata.resource_version), stored)


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
    "name", "namespace", "uid", "resource_version", "generation", "creation_timestamp", "deletion_timestamp",
    "finalizers",
)  # fmt: skip
