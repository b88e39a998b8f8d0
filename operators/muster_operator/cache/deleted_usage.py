"""Usage of jobs that were deleted, until it is in the durable record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from muster.usage.segments import Charged, JobSegments, segments_of

KEPT_S = 300.0
"""Time for which a job is kept after the record has it: readers of an older copy of the record need it."""


@dataclass(slots=True)
class DeletedUsage:
    """Jobs that were deleted while this process observed them. `on_job` is called when one with usage was deleted.
    Beyond `max_jobs`, the oldest job of the namespace with the most is dropped, so that no namespace takes another's
    place."""

    clock: Callable[[], float]
    on_job: Callable[[], None]
    max_jobs: int = 20_000
    _jobs: dict[str, tuple[float, JobSegments]] = field(default_factory=dict)  # by uid, with the time of the deletion
    _by_namespace: dict[str, dict[str, None]] = field(default_factory=dict)  # uids, the oldest first

    def on_deleted(self, job: Charged) -> None:
        """The job does not exist any more; what it takes ends now."""
        now = self.clock()
        found = segments_of(job, now)
        if found is None:
            return
        self._jobs[job.metadata.uid] = now, found.with_end()
        self._by_namespace.setdefault(found.namespace, {})[job.metadata.uid] = None
        if len(self._jobs) > self.max_jobs:
            largest = max(self._by_namespace.values(), key=len)
            self._drop([next(iter(largest))])
        self.on_job()

    def all(self) -> tuple[JobSegments, ...]:
        return tuple(job for _, job in self._jobs.values())

    def missing(self, counted: Mapping[str, int]) -> bool:
        """Whether the record lacks a segment of one."""
        return any(counted.get(uid, 0) < job.count for uid, (_, job) in self._jobs.items())

    def drop_recorded(self, counted: Mapping[str, int]) -> None:
        """Drop those that the record has had for a while."""
        now = self.clock()
        for uid, (at, job) in list(self._jobs.items()):
            if counted.get(uid, 0) >= job.count and now >= at + KEPT_S:
                self._drop([uid])

    def drop_older(self, age_s: float) -> None:
        """Drop those that were deleted so long ago."""
        now = self.clock()
        self._drop([uid for uid, (at, _) in self._jobs.items() if now >= at + age_s])

    def _drop(self, uids: Iterable[str]) -> None:
        for uid in uids:
            _, job = self._jobs.pop(uid)
            uids_of_namespace = self._by_namespace[job.namespace]
            del uids_of_namespace[uid]
            if not uids_of_namespace:
                del self._by_namespace[job.namespace]
