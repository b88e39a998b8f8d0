"""Events of jobs: those that the engine decides, and one for a job that stays pending for the same reason.

Most jobs start at once and most reasons change soon, so an Event `Pending` is recorded only when a reason has not
changed for a while, and rarely for the same job.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.api import spec
from muster.cluster import RecordEvent
from muster.lifecycle import find_condition
from muster.lifecycle.conditions import ADMITTED
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.event_recorder import EventRecorder, PendingEvent
from muster_operator.logs import CYCLE
from muster_operator.pod_builder.events import event_manifest

PENDING = "Pending"
_MIN_STABLE_S = 30.0  # that a reason must be unchanged
_MIN_INTERVAL_S = 600.0  # between Events of one job
_MAX_ENTRIES = 50_000
_SUPERSEDES = {
    "Completed": "Admitted",
    "Admitted": PENDING,
}  # an Event reason, and the reason of the pending Event that it makes obsolete


@dataclass(slots=True)
class JobEvents:
    """Queues Events of jobs. `instance` names the reporting operator.

    In each term (`begin_term`) it tracks since when the reasons of pending jobs are unchanged (`on_status_written`).
    """

    cache: ClusterCache
    recorder: EventRecorder
    instance: str
    clock: Callable[[], float] = time.monotonic
    # reason and since when, by uid; oldest first
    _since: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _recorded: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)  # reason and when, by uid

    def record(self, event: RecordEvent) -> None:
        """Queue an Event of a job."""
        known = self.cache.jobs.get(event.job_uid)
        if known is not None:
            manifest = event_manifest(known.job.metadata, event, time.time(), self.instance, cycle=CYCLE.get())
            key = f"{event.job_uid} {event.reason}"
            supersedes = f"{event.job_uid} {_SUPERSEDES[event.reason]}" if event.reason in _SUPERSEDES else ""
            self.recorder.enqueue(PendingEvent(known.namespace, manifest, key, supersedes))

    def begin_term(self) -> None:
        """It is unknown since when the present reasons exist."""
        self._since.clear()

    def on_status_written(self, uid: str, before: spec.TrainingJobStatus, status: spec.TrainingJobStatus) -> None:
        """The status of a job was written."""
        if status.phase != PENDING:
            self._since.pop(uid, None)
        elif (before.phase, before.reason) != (status.phase, status.reason):
            self._since[uid] = status.reason, self.clock()
            self._since.move_to_end(uid)

    def record_pending_reasons(self) -> None:
        """Record the reasons that have been unchanged for long enough."""
        now = self.clock()
        while self._since and self.due_in_s() <= 0.0:
            uid, (reason, _) = self._since.popitem(last=False)
            self._record_reason(uid, reason, now)

    def due_in_s(self) -> float:
        """Seconds until the next reason is due, 0 if one is; infinity if there is none."""
        since = next((since for _, since in self._since.values()), float("inf"))
        return max(0.0, since + _MIN_STABLE_S - self.clock())

    def _record_reason(self, uid: str, reason: str, now: float) -> None:
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
