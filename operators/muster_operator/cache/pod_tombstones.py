"""Pods that ended and were deleted before their job was decided on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.cluster import PodView
from muster_operator.cache.cached_pod import JobKey


class PodTombstones:
    """The last views of pods that ended and were deleted before a decision about their end: of each TrainingJob those
    of the newest attempt with one.

    Kubernetes limits the number of ended pods (pod garbage collection), and removes one that it stops as soon as it has
    ended, while others of its gang still run. Such a pod stays visible as it ended until its job is decided on;
    otherwise its work would be repeated. Tombstones are in memory only: the next leader has only the status
    (`finishedPods`).
    """

    def __init__(self) -> None:
        self._views: dict[JobKey, dict[str, PodView]] = {}

    def add(self, job: JobKey, view: PodView) -> None:
        """A pod that had ended was deleted. One that failed after its deletion was requested failed because of that."""
        if not view.deleting or view.phase == "Succeeded":
            view = replace(view, tombstone=True)
            others = self._views.get(job, {}).values()
            self._views[job] = {one.name: one for one in (*others, view) if one.attempt >= view.attempt}

    def views_of(self, job: JobKey | None) -> Iterable[PodView]:
        return self._views[job].values() if job in self._views else ()

    def remove(self, job: JobKey, name: str) -> bool:
        """Remove one: the job was decided on, or has a new pod of that name; whether it existed."""
        return self._views.get(job, {}).pop(name, None) is not None

    def remove_job(self, job: JobKey) -> None:
        """Remove those of a job."""
        self._views.pop(job, None)
