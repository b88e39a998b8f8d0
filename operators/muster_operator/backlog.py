"""What may be written later: why gangs wait, and that they run. While new jobs come that nobody has decided about, and
pods wait for kube-scheduler, it would only be in their way: on a small control plane a status costs more than the pod
that it tells of, and most of those who wait in a crowd wait only for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice

from muster.cluster import ObjectWrites, Phase

_LONG_RUSH_S = 60.0
_STANDSTILL_S = 2.0
_SHARE, _LEAST_A_SECOND = 0.1, 10.0  # of all writes, in a rush that lasts
_MOST_CREDIT = 256.0


class Rush:
    """Whether somebody waits who is more pressing (`pressing`), and does not wait in vain: `progress` grows.

    One that stands still for 2 s is none. After a minute of one others may have a tenth of all writes, and ten a second
    at least (`spares`): they wait as well.
    """

    def __init__(
        self, pressing: Callable[[], bool], progress: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pressing = pressing
        self._progress = progress
        self._clock = clock
        self._since: float | None = None
        self._far = -1
        self._moved_at = 0.0
        self._credit, self._credited_at = 0.0, 0.0

    def on(self) -> bool:
        """Whether what can wait should."""
        now, far = self._clock(), self._progress()
        if far != self._far:
            self._far, self._moved_at = far, now
        if not self._pressing():
            self._since = None
            return False
        if self._since is None:
            self._since = self._moved_at = now
        return now - self._moved_at < _STANDSTILL_S

    def presses(self) -> bool:
        """Whether there is one that has not lasted for a minute yet: nothing else is written."""
        return self.on() and self._since is not None and self._clock() - self._since < _LONG_RUSH_S

    def wrote(self, count: int) -> None:
        """So many were served."""
        self._credit = min(_MOST_CREDIT, self._credit + _SHARE * count)

    def spares(self, most: int) -> int:
        """How many of those who can wait may be written now."""
        if not self.on():
            return most
        now = self._clock()
        if self.presses():
            self._credit, self._credited_at = 0.0, now
            return 0
        self._credit = min(_MOST_CREDIT, self._credit + _LEAST_A_SECOND * (now - self._credited_at))
        self._credited_at = now
        count = min(most, int(self._credit))
        self._credit -= count
        return count


class Backlog:
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

    def void(self, items: Iterable[ObjectWrites]) -> None:
        """These jobs are written otherwise now."""
        for item in items if self._waiting else ():
            self._waiting.pop(item.job_uid, None)

    def take(self, count: int) -> Phase:
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
