"""Usage of jobs that were deleted, until it is in the durable record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from muster.api import spec
from muster.usage.segments import JobSegments, segments_of

MAX_JOBS = 20_000
KEPT_S = 300.0
"""Time for which a job is kept after the record has it: readers of an older copy of the record need it."""


@dataclass(slots=True)
class DeletedUsage:
    """Jobs that were deleted while this process observed them. `on_job` is called when one with usage was deleted."""

    clock: Callable[[], float]
    on_job: Callable[[], None]
    _jobs: dict[str, tuple[float, JobSegments]] = field(default_factory=dict)  # by uid, with the time of the deletion

    def on_deleted(self, job: spec.TrainingJob) -> None:
        """The job does not exist any more; what it takes ends now."""
        now = self.clock()
        found = segments_of(job, now)
        if found is None:
            return
        self._jobs[job.metadata.uid] = now, found.with_end()
        if len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        self.on_job()

    def all(self) -> tuple[JobSegments, ...]:
        """All that are kept."""
        return tuple(job for _, job in self._jobs.values())

    def missing(self, counted: Mapping[str, int]) -> bool:
        """Whether the record lacks a segment of one."""
        return any(counted.get(uid, 0) < job.count for uid, (_, job) in self._jobs.items())

    def drop_recorded(self, counted: Mapping[str, int]) -> None:
        """Drop those that the record has had for a while."""
        now = self.clock()
        for uid, (at, job) in list(self._jobs.items()):
            if counted.get(uid, 0) >= job.count and now >= at + KEPT_S:
                del self._jobs[uid]

    def drop_older(self, age_s: float) -> None:
        """Drop those that were deleted so long ago."""
        now = self.clock()
        self._jobs = {uid: one for uid, one in self._jobs.items() if now < one[0] + age_s}
