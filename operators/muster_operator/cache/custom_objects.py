"""Queues and Flavors as the engine sees them: few, so each change reads the whole object.

One that cannot be read is told of by name. A queue is shown all the same, since what runs in it stays charged: as it
was before that edit, else as far as it can be read. A flavor is not: which nodes are of it nobody could say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
from pydantic import ValidationError

from muster import spec
from muster.yaml_input.invalid_objects import invalid_reason, metadata_of, valid_part
from muster.yaml_input.truncate import decode_truncated
from muster_operator.cache.k8s_types import RawCustomObject
from muster_operator.cache.mutation_cache import MutationCache

D = TypeVar("D", bound=spec.Queue | spec.Flavor)


@dataclass(frozen=True, slots=True)
class InvalidObject:
    """An object that cannot be read: as it came, and what is wrong with it."""

    metadata: spec.ObjectMeta
    document: Mapping[str, Any]
    error: str


class CustomObjectCache(Generic[D]):
    """A sink for one of the two kinds."""

    def __init__(self, model: type[D], changed: Callable[[], None]) -> None:
        self._model = model
        self._changed = changed
        self._cache = MutationCache[D](self._on_change)
        self.invalid: dict[str, InvalidObject] = {}  # what cannot be read, by name
        self._errors: Mapping[str, str] | None = None

    def on_list(self, keys: set[str], version: int) -> None:
        """There are no others."""
        for name in self.invalid.keys() - keys:
            self._clear_invalid(name)
        self._cache.retain(keys, version)

    def on_upsert(self, item: RawCustomObject) -> None:
        """Created or changed."""
        name, version = item.metadata.name, item.metadata.version
        if not self._cache.is_newer(name, version):
            return
        document = _as_document(item)
        wrong = invalid_reason(document, self._model.__name__)
        if wrong is not None:
            self._set_invalid(name, version, document, wrong)
            return
        self._clear_invalid(name)
        fresh = self._parse(document)
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
        """Deleted."""
        self._clear_invalid(item.metadata.name)
        self._cache.delete(item.metadata.name, item.metadata.version)

    def on_bookmark(self, version: int) -> None:
        """Everything up to here has been told."""
        self._cache.advance(version)

    def on_written(self, name: str, version: int, update: dict[str, object]) -> None:
        """We wrote it: fields of the model (`status`) and of its metadata (`finalizers`)."""
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
        """We wrote what is wrong with it: `one` is as `told` now, unless watches have shown it anew, or gone,
        meanwhile."""
        name = reported.metadata.name
        if self.invalid.get(name) is before:
            self.invalid[name] = reported
            self._errors = None

    def get(self, name: str) -> D | None:
        """One, or None."""
        return self._cache.get(name)

    def all(self) -> tuple[D, ...]:
        """All, by name."""
        return tuple(sorted(self._cache, key=lambda item: item.metadata.name))

    def errors(self) -> Mapping[str, str]:
        """Why some cannot be read, by name; the same mapping as long as nothing changed."""
        if self._errors is None:
            self._errors = {name: one.error for name, one in self.invalid.items()}
        return self._errors

    def _set_invalid(self, name: str, version: int, document: dict[str, Any], error: str) -> None:
        """It cannot be read."""
        metadata, before = metadata_of(document), self._cache.get(name)
        self.invalid[name] = InvalidObject(metadata, document, error)
        self._errors = None
        if self._model is not spec.Queue:
            self._cache.delete(name, version)
        else:
            same = before is not None and before.metadata.uid == metadata.uid
            update = {"spec": before.spec} if before is not None and same else {}
            self._cache.upsert(name, version, cast(D, valid_part(document).model_copy(update=update)))
        self._changed()

    def _clear_invalid(self, name: str) -> None:
        """It can be read, or is gone."""
        if self.invalid.pop(name, None) is not None:
            self._errors = None
            self._changed()

    def _parse(self, document: dict[str, Any]) -> D:
        """An object that can be read, but perhaps for its status: that counts as never written then."""
        try:
            return cast(D, self._model.model_validate(document))
        except ValidationError:
            return cast(D, self._model.model_validate({**document, "status": {}}))

    def _on_change(self, name: str, old: D | None, new: D | None) -> None:
        self._changed()


def _as_document(item: RawCustomObject) -> dict[str, Any]:
    meta = item.metadata
    return {
        "metadata": {
            "name": meta.name,
            "uid": meta.uid,
            "generation": meta.generation,
            "resource_version": meta.resource_version,
            "creation_timestamp": meta.creation_timestamp,
            "deletion_timestamp": meta.deletion_timestamp,
            "finalizers": meta.finalizers,
        },
        "spec": decode_truncated(msgspec.json.decode, item.spec),
        "status": decode_truncated(msgspec.json.decode, item.status),
    }
