"""What may be written later: why gangs wait, and that they run. While new jobs come that nobody has decided about, and
pods wait for kube-scheduler, it would only be in their way: on a small control plane a status costs more than the pod
that it tells of, and most of those who wait in a crowd wait only for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice

from muster.cluster import ObjectWrites, WritePhase

_EXCLUSIVE_S = 60.0
_STALL_S = 2.0
_DEFERRED_SHARE, _MIN_DEFERRED_PER_S = 0.1, 10.0  # of all writes, in a rush that lasts
_MAX_BUDGET = 256.0


class WriteThrottle:
    """Whether somebody waits who is more pressing (`pressing`), and does not wait in vain: `progress` grows.

    One that stands still for 2 s is none. After a minute of one others may have a tenth of all writes, and ten a second
    at least (`spares`): they wait as well.
    """

    def __init__(
        self,
        has_urgent_work: Callable[[], bool],
        progress: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_urgent_work = has_urgent_work
        self._progress = progress
        self._clock = clock
        self._active_since: float | None = None
        self._last_progress = -1
        self._progressed_at = 0.0
        self._budget, self._budget_updated_at = 0.0, 0.0

    def is_active(self) -> bool:
        """Whether what can wait should."""
        now, far = self._clock(), self._progress()
        if far != self._last_progress:
            self._last_progress, self._progressed_at = far, now
        if not self._has_urgent_work():
            self._active_since = None
            return False
        if self._active_since is None:
            self._active_since = self._progressed_at = now
        return now - self._progressed_at < _STALL_S

    def blocks_deferred_writes(self) -> bool:
        """Whether there is one that has not lasted for a minute yet: nothing else is written."""
        return self.is_active() and self._active_since is not None and self._clock() - self._active_since < _EXCLUSIVE_S

    def record_writes(self, count: int) -> None:
        """So many were served."""
        self._budget = min(_MAX_BUDGET, self._budget + _DEFERRED_SHARE * count)

    def take_budget(self, limit: int) -> int:
        """How many of those who can wait may be written now."""
        if not self.is_active():
            return limit
        now = self._clock()
        if self.blocks_deferred_writes():
            self._budget, self._budget_updated_at = 0.0, now
            return 0
        self._budget = min(_MAX_BUDGET, self._budget + _MIN_DEFERRED_PER_S * (now - self._budget_updated_at))
        self._budget_updated_at = now
        count = min(limit, int(self._budget))
        self._budget -= count
        return count


class DeferredStatusQueue:
    """The newest of these writes, by job, oldest first. Statuses in it are guarded like all others."""

    def __init__(self) -> None:
        self._waiting: dict[str, ObjectWrites] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting

    def add(self, items: Iterable[ObjectWrites]) -> None:
        """Write these when there is time."""
        for item in items:
            self._waiting.pop(item.job_uid, None)
            self._waiting[item.job_uid] = item

    def discard(self, items: Iterable[ObjectWrites]) -> None:
        """These jobs are written otherwise now."""
        for item in items if self._waiting else ():
            self._waiting.pop(item.job_uid, None)

    def take(self, count: int) -> WritePhase:
        """The oldest ones, which are not in it any more."""
        taken = tuple(islice(self._waiting.values(), count))
        for item in taken:
            del self._waiting[item.job_uid]
        return taken

    def clear(self) -> set[str]:
        """Forget everything; whose writes that were."""
        uids = set(self._waiting)
        self._waiting.clear()
        return uids
