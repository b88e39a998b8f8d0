"""Cache of Queues and Flavors. There are few, so every change parses the whole object.

An object that cannot be read is reported by name. Such a queue stays visible, since what runs in it stays charged: as
it was before the edit, else with the parts that can be read. Such a flavor does not, because its nodes are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from muster.api import spec
from muster.api.yaml_input.undecodable import decode_truncated, metadata_of
from muster.kube.convert import read_queue_or_flavor
from muster.kube.objects import RawCustomObject
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache

D = TypeVar("D", bound=spec.Queue | spec.Flavor)


@dataclass(frozen=True, slots=True)
class InvalidObject:
    """An object that cannot be read: the raw document and the error."""

    metadata: spec.ObjectMeta
    document: Mapping[str, Any]
    error: str


class CustomObjectCache(WatchedCache[D]):
    """Event handler and cache of one of the two kinds."""

    def __init__(self, model: type[D], changed: Callable[[], None]) -> None:
        self._model = model
        self._changed = changed
        self._cache = MutationCache[D](self._on_change)
        self.invalid: dict[str, InvalidObject] = {}  # objects that cannot be read, by name
        self._errors: Mapping[str, str] | None = None

    def on_list(self, keys: set[str], version: int) -> None:
        for name in self.invalid.keys() - keys:
            self._clear_invalid(name)
        super().on_list(keys, version)

    def on_upsert(self, item: RawCustomObject) -> None:
        name, version = item.metadata.name, item.metadata.version
        if not self._cache.is_newer(name, version):
            return
        document = as_document(item)
        del document["metadata"]["namespace"]  # both kinds are cluster-scoped
        fresh, error = read_queue_or_flavor(self._model, document)
        if error is not None:
            self._set_invalid(version, InvalidObject(metadata_of(document), document, error), fresh)
            return
        assert fresh is not None
        self._clear_invalid(name)
        before = self._cache.get(name)
        if before is not None:
            kept: dict[str, object] = {}
            if before.spec == fresh.spec:  # the engine finds differences by identity
                kept["spec"] = before.spec
            if before.status == fresh.status:
                kept["status"] = before.status
            fresh = cast(D, fresh.model_copy(update=kept))
        self._cache.upsert(name, version, fresh)

    def on_delete(self, item: RawCustomObject) -> None:
        self._clear_invalid(item.metadata.name)
        super().on_delete(item)

    def on_written(self, name: str, version: int, update: dict[str, object]) -> None:
        """Our write was acknowledged: fields of the model (`status`) and of its metadata (`finalizers`)."""
        before = self._cache.get(name)
        if before is not None:
            meta: dict[str, Any] = {"resource_version": str(version)}
            if "finalizers" in update:
                meta["finalizers"] = update["finalizers"]
            fields = {key: value for key, value in update.items() if key != "finalizers"}
            metadata = before.metadata.model_copy(update=meta)
            fresh = cast(D, before.model_copy(update={**fields, "metadata": metadata}))
            self._cache.on_written(name, version, fresh)

    def on_reported(self, before: InvalidObject, reported: InvalidObject) -> None:
        """Our report of an invalid object was written: replace `before` by `reported`, unless a watch has delivered a
        newer state or a deletion."""
        name = reported.metadata.name
        if self.invalid.get(name) is before:
            self.invalid[name] = reported
            self._errors = None

    def get(self, name: str) -> D | None:
        return self._cache.get(name)

    def all(self) -> tuple[D, ...]:
        """All objects, ordered by name."""
        return tuple(sorted(self._cache, key=lambda item: item.metadata.name))

    def errors(self) -> Mapping[str, str]:
        """Error by name of each invalid object; the same mapping until something changes."""
        if self._errors is None:
            self._errors = {name: one.error for name, one in self.invalid.items()}
        return self._errors

    def _set_invalid(self, version: int, invalid: InvalidObject, valid_fields: D | None) -> None:
        """Record that the object cannot be read. Its spec stays as before, if there was a valid one."""
        name, before = invalid.metadata.name, self._cache.get(invalid.metadata.name)
        self.invalid[name] = invalid
        self._errors = None
        if valid_fields is None:
            self._cache.delete(name, version)
        else:
            same = before is not None and before.metadata.uid == invalid.metadata.uid
            update = {"spec": before.spec} if before is not None and same else {}
            self._cache.upsert(name, version, cast(D, valid_fields.model_copy(update=update)))
        self._changed()

    def _clear_invalid(self, name: str) -> None:
        """Forget the error: the object can be read, or was deleted."""
        if self.invalid.pop(name, None) is not None:
            self._errors = None
            self._changed()

    def _on_change(self, name: str, old: D | None, new: D | None) -> None:
        self._changed()


def as_document(item: RawCustomObject) -> dict[str, Any]:
    """The object as pydantic validates it, truncated where it is nested too deep to decode. Raises ValueError."""
    return {
        "metadata": msgspec.structs.asdict(item.metadata) | {"labels": {}},
        "spec": decode_truncated(msgspec.json.decode, item.spec),
        "status": decode_truncated(msgspec.json.decode, item.status),
    }
