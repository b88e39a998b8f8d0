"""Cache of TraceCaptures. One that cannot be read is ignored: the API server validates them, so only another version of
Muster can have written it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pydantic import ValidationError

from muster.api.spec import FINISHED_CAPTURE_PHASES, TraceCapture, TraceCaptureStatus
from muster.kube.objects import RawCustomObject
from muster_operator.cache.custom_objects import as_document
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache

_LOG = logging.getLogger("muster.operator")


class CaptureCache(WatchedCache[TraceCapture]):
    """Event handler and cache, by NAMESPACE/NAME. `changed` is called when there may be something to do."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._cache = MutationCache[TraceCapture](self._on_change)
        self._withdrawn: list[TraceCapture] = []

    def on_upsert(self, item: RawCustomObject) -> None:
        key = item.metadata.key
        if not self._cache.is_newer(key, item.metadata.version):
            return
        try:
            capture = _read(item)
        except (ValidationError, ValueError) as error:
            _LOG.warning("unreadable TraceCapture", extra={"capture": key, "why": str(error)[:500]})
            self._cache.delete(key, item.metadata.version)
            return
        self._cache.upsert(key, item.metadata.version, capture)

    def on_written(self, capture: TraceCapture, status: TraceCaptureStatus, version: int) -> TraceCapture:
        """Our status was written; returns the object with it."""
        metadata = capture.metadata.model_copy(update={"resource_version": str(version)})
        written = capture.model_copy(update={"status": status, "metadata": metadata})
        self._cache.on_written(f"{capture.metadata.namespace}/{capture.metadata.name}", version, written)
        return written

    def all(self) -> list[TraceCapture]:
        """All captures, oldest first."""
        return sorted(
            self._cache, key=lambda one: (one.metadata.creation_timestamp or 0.0, one.metadata.uid, one.metadata.name)
        )

    def take_withdrawn(self) -> list[TraceCapture]:
        """Captures that were deleted before they were finished, since the last call."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def _on_change(self, key: str, old: TraceCapture | None, new: TraceCapture | None) -> None:
        if new is None and old is not None and old.status.phase not in FINISHED_CAPTURE_PHASES:
            self._withdrawn.append(old)
        self._changed()


def _read(item: RawCustomObject) -> TraceCapture:
    document = as_document(item)
    try:
        return TraceCapture.model_validate(document)
    except ValidationError:
        return TraceCapture.model_validate({**document, "status": {}})  # one that cannot be read was never written
