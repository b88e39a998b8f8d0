"""Queues and Flavors as the engine sees them: few, so each change reads the whole object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
from pydantic import ValidationError

from muster import spec
from muster_operator.sight.shapes import Document
from muster_operator.sight.shelf import Shelf

D = TypeVar("D", bound=spec.Queue | spec.Flavor)


class Documents(Generic[D]):
    """A sink for one of the two kinds."""

    def __init__(self, model: type[D], changed: Callable[[], None]) -> None:
        self._model = model
        self._changed = changed
        self._shelf = Shelf[D](self._note)
        self.broken: dict[str, str] = {}  # what cannot be read, by name

    def replace(self, objects: list[Document], version: int) -> None:
        """All there are."""
        for item in objects:
            self.put(item)
        self._shelf.keep_only((item.metadata.name for item in objects), version)

    def put(self, item: Document) -> None:
        """Created or changed."""
        name, version = item.metadata.name, item.metadata.version
        if not self._shelf.is_news(name, version):
            return
        try:
            fresh = self._read(item)
        except ValidationError as error:
            self.broken[name] = str(error)
            self._shelf.drop(name, version)
            return
        self.broken.pop(name, None)
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
        self.broken.pop(item.metadata.name, None)
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

    def get(self, name: str) -> D | None:
        """One, or None."""
        return self._shelf.get(name)

    def all(self) -> tuple[D, ...]:
        """All, by name."""
        return tuple(sorted(self._shelf, key=lambda item: item.metadata.name))

    def _read(self, item: Document) -> D:
        meta = item.metadata
        document = {
            "metadata": {
                "name": meta.name,
                "uid": meta.uid,
                "generation": meta.generation,
                "resource_version": meta.resource_version,
                "creation_timestamp": meta.creation_timestamp,
                "deletion_timestamp": meta.deletion_timestamp,
                "finalizers": meta.finalizers,
            },
            "spec": msgspec.json.decode(item.spec),
            "status": msgspec.json.decode(item.status),
        }
        return cast(D, self._model.model_validate(document))

    def _note(self, name: str, old: D | None, new: D | None) -> None:
        self._changed()
