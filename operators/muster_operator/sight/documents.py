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
from muster.documents.shorn import decoded
from muster.documents.unreadable import complaint, metadata_of, readable_part
from muster_operator.sight.shapes import Document
from muster_operator.sight.shelf import Shelf

D = TypeVar("D", bound=spec.Queue | spec.Flavor)


@dataclass(frozen=True, slots=True)
class Faulty:
    """An object that cannot be read: as it came, and what is wrong with it."""

    metadata: spec.ObjectMeta
    document: Mapping[str, Any]
    complaint: str


class Documents(Generic[D]):
    """A sink for one of the two kinds."""

    def __init__(self, model: type[D], changed: Callable[[], None]) -> None:
        self._model = model
        self._changed = changed
        self._shelf = Shelf[D](self._note)
        self.broken: dict[str, Faulty] = {}  # what cannot be read, by name
        self._complaints: Mapping[str, str] | None = None

    def keep_only(self, keys: set[str], version: int) -> None:
        """There are no others."""
        for name in self.broken.keys() - keys:
            self._mended(name)
        self._shelf.keep_only(keys, version)

    def put(self, item: Document) -> None:
        """Created or changed."""
        name, version = item.metadata.name, item.metadata.version
        if not self._shelf.is_news(name, version):
            return
        document = _document(item)
        wrong = complaint(document, self._model.__name__)
        if wrong is not None:
            self._put_aside(name, version, document, wrong)
            return
        self._mended(name)
        fresh = self._read(document)
        before = self._shelf.get(name)
        if before is not None:
            kept: dict[str, object] = {}
            if before.spec == fresh.spec:  # the engine finds differences by identity
                kept["spec"] = before.spec
            if before.status == fresh.status:
                kept["status"] = before.status
            fresh = cast(D, fresh.model_copy(update=kept))
        self._shelf.put(name, version, fresh)

    def drop(self, item: Document) -> None:
        """Deleted."""
        self._mended(item.metadata.name)
        self._shelf.drop(item.metadata.name, item.metadata.version)

    def progress(self, version: int) -> None:
        """Everything up to here has been told."""
        self._shelf.progress(version)

    def wrote(self, name: str, version: int, update: dict[str, object]) -> None:
        """We wrote it: fields of the model (`status`) and of its metadata (`finalizers`)."""
        before = self._shelf.get(name)
        if before is not None:
            meta: dict[str, Any] = {"resource_version": str(version)}
            if "finalizers" in update:
                meta["finalizers"] = update["finalizers"]
            fields = {key: value for key, value in update.items() if key != "finalizers"}
            metadata = before.metadata.model_copy(update=meta)
            fresh = cast(D, before.model_copy(update={**fields, "metadata": metadata}))
            self._shelf.wrote(name, version, fresh)

    def complained(self, one: Faulty, told: Faulty) -> None:
        """We wrote what is wrong with it: `one` is as `told` now, unless watches have shown it anew, or gone,
        meanwhile."""
        name = told.metadata.name
        if self.broken.get(name) is one:
            self.broken[name] = told
            self._complaints = None

    def get(self, name: str) -> D | None:
        """One, or None."""
        return self._shelf.get(name)

    def all(self) -> tuple[D, ...]:
        """All, by name."""
        return tuple(sorted(self._shelf, key=lambda item: item.metadata.name))

    def complaints(self) -> Mapping[str, str]:
        """Why some cannot be read, by name; the same mapping as long as nothing changed."""
        if self._complaints is None:
            self._complaints = {name: one.complaint for name, one in self.broken.items()}
        return self._complaints

    def _put_aside(self, name: str, version: int, document: dict[str, Any], wrong: str) -> None:
        """It cannot be read."""
        metadata, before = metadata_of(document), self._shelf.get(name)
        self.broken[name] = Faulty(metadata, document, wrong)
        self._complaints = None
        if self._model is not spec.Queue:
            self._shelf.drop(name, version)
        else:
            same = before is not None and before.metadata.uid == metadata.uid
            update = {"spec": before.spec} if before is not None and same else {}
            self._shelf.put(name, version, cast(D, readable_part(document).model_copy(update=update)))
        self._changed()

    def _mended(self, name: str) -> None:
        """It can be read, or is gone."""
        if self.broken.pop(name, None) is not None:
            self._complaints = None
            self._changed()

    def _read(self, document: dict[str, Any]) -> D:
        """An object that can be read, but perhaps for its status: that counts as never written then."""
        try:
            return cast(D, self._model.model_validate(document))
        except ValidationError:
            return cast(D, self._model.model_validate({**document, "status": {}}))

    def _note(self, name: str, old: D | None, new: D | None) -> None:
        self._changed()


def _document(item: Document) -> dict[str, Any]:
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
        "spec": decoded(msgspec.json.decode, item.spec),
        "status": decoded(msgspec.json.decode, item.status),
    }
