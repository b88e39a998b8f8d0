"""Events for jobs that stay pending: the reason in their status.

Most jobs start at once and most reasons change soon, so an Event is recorded only when a reason has not changed for a
while, and rarely for the same job. Like all Events other than warnings it is sent when nothing else is.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from muster import spec
from muster.cluster import RecordEvent
from muster.lifecycle import find_condition
from muster.lifecycle.conditions import ADMITTED
from muster_operator.cache.cluster_cache import ClusterCache

PENDING = "Pending"
_MIN_STABLE_S = 30.0  # that a reason must be unchanged
_MIN_INTERVAL_S = 600.0  # between Events of one job
_MAX_ENTRIES = 50_000


@dataclass(slots=True)
class PendingReasonEvents:
    """Tracks since when reasons are unchanged (`on_status_written`) in one term (`reset`); `record_due` records
    Events."""

    cache: ClusterCache
    record: Callable[[RecordEvent], None]
    clock: Callable[[], float] = time.monotonic
    _since: OrderedDict[str, tuple[str, float]] = field(
        default_factory=OrderedDict
    )  # reason and since when, by uid; oldest first
    _recorded: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)  # reason and when, by uid

    def reset(self) -> None:
        """A term begins: it is unknown since when the present reasons exist."""
        self._since.clear()

    def on_status_written(self, uid: str, before: spec.TrainingJobStatus, status: spec.TrainingJobStatus) -> None:
        """The status of a job was written."""
        if status.phase != PENDING:
            self._since.pop(uid, None)
        elif (before.phase, before.reason) != (status.phase, status.reason):
            self._since[uid] = status.reason, self.clock()
            self._since.move_to_end(uid)

    def record_due(self) -> None:
        """Record the reasons that have been unchanged for long enough."""
        now = self.clock()
        while self._since and self.due_in_s() <= 0.0:
            uid, (reason, _) = self._since.popitem(last=False)
            self._record(uid, reason, now)

    def due_in_s(self) -> float:
        """Seconds until the next reason is due, 0 if one is; infinity if there is none."""
        since = next((since for _, since in self._since.values()), float("inf"))
        return max(0.0, since + _MIN_STABLE_S - self.clock())

    def _record(self, uid: str, reason: str, now: float) -> None:
        known = self.cache.jobs.get(uid)
        if known is None or (known.job.status.phase, known.job.status.reason) != (PENDING, reason):
            return
        last = self._recorded.get(uid)
        if last is not None and (last[0] == reason or now < last[1] + _MIN_INTERVAL_S):
            return
        self._recorded[uid] = (reason, now)
        self._recorded.move_to_end(uid)
        if len(self._recorded) > _MAX_ENTRIES:
            self._recorded.popitem(last=False)  # costs only another Event
        condition = find_condition(known.job.status, ADMITTED)
        message = "" if condition is None else condition.message
        self.record(RecordEvent(uid, "Normal", PENDING, f"{reason}: {message}"))
