"""Gangs larger than their queue's guarantee, beside other queues with a backlog: only of marked jobs.

- Such a gang starts in time. Time counts while one holder renews the Lease (`deadlines.py`).
- While it waits, others borrow what it cannot use: at least one gang of another queue is admitted beyond that queue's
  guarantee. Gangs that were admitted before the operator must have known of it (KNOWN_WITHIN_S) do not count. If it
  waits for less than WAITS_S, none need have ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel, demand
from tests.cluster.chaos.checker.objects import Job
from tests.cluster.chaos.checker.violation import Finding

KNOWN_WITHIN_S = 3.0
WAITS_S = 15.0


class BorrowingChecks:
    """Remembers since when marked jobs wait, and who has borrowed meanwhile."""

    def __init__(self) -> None:
        self._waits_since: dict[str, float] = {}  # by job uid
        self._borrowed: set[str] = set()  # uids of marked jobs while which others borrowed

    def check_job(self, model: ClusterModel, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job is submitted, admitted, or ends."""
        if job.starts_within_s is not None:
            if not job.admitted and not job.finished and not job.deleted:
                self._waits_since.setdefault(job.uid, at)
                return
            since = self._waits_since.pop(job.uid, at)
            if job.admitted and at > since + WAITS_S and job.uid not in self._borrowed:
                message = f"waited {at - since:.0f} s, and meanwhile no other queue could borrow"
                yield "what a gang cannot use is borrowed", job.key, message, (("TrainingJob", job.key),)
        elif job.runs and not (old is not None and old.runs) and self._waits_since and _borrows(model, job):
            self._borrowed |= {uid for uid, since in self._waits_since.items() if at > since + KNOWN_WITHIN_S}

    def overdue(self, model: ClusterModel, leading_since: float, now: float) -> Iterator[Finding]:
        """Check how long they wait; one operator leads since then."""
        for uid in self._waits_since.keys() - model.jobs.keys():
            del self._waits_since[uid]
        for uid, since in self._waits_since.items():
            job = model.jobs[uid]
            if job.starts_within_s is not None and now - max(since, leading_since) > job.starts_within_s:
                message = f"waits for {now - since:.0f} s, its turn comes within {job.starts_within_s:g} s"
                yield "a gang that has to borrow starts in time", job.key, message, (("TrainingJob", job.key),)


def _borrows(model: ClusterModel, job: Job) -> bool:
    """Whether the running gangs of its queue use more than its guarantee, of something that the job requests."""
    queue, requested = model.queues.get(job.queue), demand(job)
    used = [demand(other) for other in model.jobs.values() if other.runs and other.queue == job.queue]
    guaranteed = {cell: amount or 0 for cell, (amount, _, _) in queue.cells.items()} if queue is not None else {}
    return any(requested[cell] and sum(one[cell] for one in used) > amount for cell, amount in guaranteed.items())
