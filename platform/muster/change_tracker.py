"""Which jobs changed since the last cycle, and whose timer is due.

Objects that did not change keep their identity, so the difference between two states of thousands of jobs is found by
comparing references.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.spec import TrainingJob


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Jobs that are new or other objects, in order; jobs with other changes (pods, heartbeats); removed jobs."""

    changed: tuple[TrainingJob, ...]
    touched: frozenset[str]  # uids; not those of `jobs`
    removed: frozenset[str]  # uids


class ChangeTracker:
    """Compares jobs, and mappings by uid, with those of the last call by identity."""

    def __init__(self) -> None:
        self._by_identity: dict[int, TrainingJob] = {}  # references keep ids from being reused
        self._by_uid: dict[str, TrainingJob] = {}
        self._related: tuple[dict[str, Any], ...] = ()

    def diff(self, jobs: Sequence[TrainingJob], *related: Mapping[str, Any]) -> ChangeSet:
        """What differs from the jobs and mappings of the last call."""
        known = self._by_identity
        fresh = [job for job in jobs if id(job) not in known]
        for job in fresh:
            old = self._by_uid.get(job.metadata.uid)
            if old is not None:
                del known[id(old)]
            known[id(job)] = self._by_uid[job.metadata.uid] = job
        gone = self._keep_only(jobs) if len(known) != len(jobs) else frozenset()
        before = self._related or tuple({} for _ in related)
        touched = set[str]()
        for past, now in zip(before, related, strict=True):
            if past != now:
                get = past.get
                touched.update(uid for uid, value in now.items() if get(uid) is not value)
                touched.update(past.keys() - now.keys())
        self._related = tuple(map(dict, related))
        touched.difference_update([job.metadata.uid for job in fresh])
        return ChangeSet(tuple(fresh), frozenset(touched & self._by_uid.keys()), gone)

    def _keep_only(self, jobs: Iterable[TrainingJob]) -> frozenset[str]:
        here = {job.metadata.uid for job in jobs}
        gone = frozenset(self._by_uid.keys() - here)
        for uid in gone:
            del self._by_identity[id(self._by_uid.pop(uid))]
        return gone


class TimerQueue:
    """One time per uid."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def schedule(self, uid: str, at: float | None) -> None:
        """Set the time of `uid`, replacing the old one; None: no time."""
        if at is None:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heapq.heappush(self._heap, (at, uid))

    def pop_due(self, now: float) -> list[str]:
        """Uids whose time has come, earliest first. They are removed."""
        found = []
        while (first := self.next_time()) is not None and first <= now:
            uid = heapq.heappop(self._heap)[1]
            del self._at[uid]
            found.append(uid)
        return found

    def next_time(self) -> float | None:
        """The earliest time; None if there is none."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None
