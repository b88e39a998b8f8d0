"""An Event for a job that has waited for a while: why it waits, as its status says it.

Most jobs start at once, and most reasons change soon; so an Event comes only when a reason has stood for a while, and
rarely for the same job. Like every Event that is no warning it is sent when nothing else is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from muster import spec
from muster.cluster import RecordEvent
from muster.lifecycle import find
from muster.lifecycle.conditions import ADMITTED
from muster_operator.sight.world import Sight

PENDING = "Pending"
_AFTER_S = 30.0  # that a reason has to stand
_EVERY_S = 600.0  # of one job
_MOST = 50_000


@dataclass(slots=True)
class PendingEvents:
    """Told of every status that is written (`wrote`)."""

    sight: Sight
    record: Callable[[RecordEvent], None]
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.get_running_loop
    _recorded: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)  # reason and when, by uid

    def wrote(self, uid: str, before: spec.TrainingJobStatus, status: spec.TrainingJobStatus) -> None:
        """The status of a job was written."""
        if status.phase == "Pending" and (before.phase, before.reason) != (status.phase, status.reason):
            self.loop().call_later(_AFTER_S, self._look, uid, status.reason)

    def _look(self, uid: str, reason: str) -> None:
        """Record it if the job still waits for this reason."""
        known = self.sight.jobs.known(uid)
        if known is None or (known.job.status.phase, known.job.status.reason) != ("Pending", reason):
            return
        now = self.loop().time()
        last = self._recorded.get(uid)
        if last is not None and (last[0] == reason or now < last[1] + _EVERY_S):
            return
        self._recorded[uid] = (reason, now)
        self._recorded.move_to_end(uid)
        if len(self._recorded) > _MOST:
            self._recorded.popitem(last=False)  # only costs another Event
        condition = find(known.job.status, ADMITTED)
        message = "" if condition is None else condition.message
        self.record(RecordEvent(uid, "Normal", PENDING, f"{reason}: {message}"))
