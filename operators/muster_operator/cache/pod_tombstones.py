"""Pods that ended by themselves and were taken away before anybody had decided about their end.

A cluster bounds how many ended pods it keeps. One that is gone is shown on as it ended, until its job goes on without
it: else its work would be done a second time. Nobody but this process knows of it, so whoever leads next sees only what
a status tells (`finishedPods`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from muster.cluster import PodView

K = TypeVar("K", bound=Hashable)


class PodTombstones(Generic[K]):
    """Their last views, by job; of each job those of the newest attempt in which a pod departed."""

    def __init__(self) -> None:
        self._views: dict[K, dict[str, PodView]] = {}

    def add(self, job: K, view: PodView) -> None:
        """It is gone, and had ended; one that was told to stop may have done so for that reason."""
        if not view.deleting:
            others = self._views.get(job, {}).values()
            self._views[job] = {one.name: one for one in (*others, view) if one.attempt >= view.attempt}

    def views_of(self, job: K | None) -> Iterable[PodView]:
        """Those of a job."""
        return self._views[job].values() if job in self._views else ()

    def remove(self, job: K, name: str) -> bool:
        """The job goes on without this pod, or has another of its name; whether there was one."""
        return self._views.get(job, {}).pop(name, None) is not None

    def remove_job(self, job: K) -> None:
        """It is not looked at any more."""
        self._views.pop(job, None)
