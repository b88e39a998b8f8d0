"""No status is written in a loop: each decision of the operator takes a few writes, however long its reason lasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.cluster.chaos.checker.objects import Job
from tests.cluster.chaos.checker.violation import Finding

WITHIN_S = 10.0
MOST_WRITES = 60  # of one job's status within this time; a loop of cycles makes ten a second and more
MOST_NOMINATIONS = 20


@dataclass(slots=True)
class LoopChecks:
    """Times of the last writes of each job's status, and of its nominations."""

    _writes: dict[str, deque[float]] = field(default_factory=dict)
    _nominations: dict[str, deque[float]] = field(default_factory=dict)

    def check(self, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job was written."""
        if old is None or old.status == job.status:
            return
        objects = (("TrainingJob", job.key),)
        count = _count(self._writes.setdefault(job.uid, deque()), at)
        if count > MOST_WRITES:
            message = f"the status was written {count} times within {WITHIN_S:g} s"
            yield "no status is written in a loop", job.key, message, objects
        if job.nomination is None or job.nomination == old.nomination:
            return
        count = _count(self._nominations.setdefault(job.uid, deque()), at)
        if count > MOST_NOMINATIONS:
            message = f"capacity was nominated {count} times within {WITHIN_S:g} s"
            yield "no nomination is renewed in a loop", job.key, message, objects


def _count(times: deque[float], at: float) -> int:
    """Record a time; how many there are within `WITHIN_S`."""
    times.append(at)
    while times[0] < at - WITHIN_S:
        times.popleft()
    return len(times)
