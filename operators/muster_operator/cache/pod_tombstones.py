"""Pods that ended and were deleted before a decision about their end.

Kubernetes limits the number of ended pods (pod garbage collection). Such a pod stays visible as it ended until its job
is decided on; otherwise its work would be repeated. Tombstones are in memory only: the next leader has only the status
(`finishedPods`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from muster.cluster import PodView

K = TypeVar("K", bound=Hashable)


class PodTombstones(Generic[K]):
    """The last views of deleted pods, by job: of each job those of the newest attempt with one."""

    def __init__(self) -> None:
        self._views: dict[K, dict[str, PodView]] = {}

    def add(self, job: K, view: PodView) -> None:
        """A pod that had ended was deleted. One whose deletion was requested may have ended because of that."""
        if not view.deleting:
            others = self._views.get(job, {}).values()
            self._views[job] = {one.name: one for one in (*others, view) if one.attempt >= view.attempt}

    def views_of(self, job: K | None) -> Iterable[PodView]:
        """The tombstones of a job."""
        return self._views[job].values() if job in self._views else ()

    def remove(self, job: K, name: str) -> bool:
        """Remove one: the job was decided on, or has a new pod of that name; whether it existed."""
        return self._views.get(job, {}).pop(name, None) is not None

    def remove_job(self, job: K) -> None:
        """Remove those of a job."""
        self._views.pop(job, None)
