"""When a waiting job's status is written: the first verdict, a new reason, and else at most once a minute, of all jobs
together ten times a second in the mean; what is wrong with a job itself every five seconds.

Positions and estimates shift with every plan; writing them all down would cost more than planning. Whoever wants them
live reads the round's `waits`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from muster.lifecycle import find_condition, transitions
from muster.lifecycle.conditions import ADMITTED
from muster.model import Wait
from muster.spec import TrainingJobStatus

_WaitText: TypeAlias = tuple[str, int | None, float | None]
REFRESHED_POSITIONS = 100  # positions of a queue that are refreshed
_REFRESHES_PER_SECOND = 10.0  # altogether
_ERROR_REFRESH_S = 5.0  # what is wrong with a job that stands in no line: whoever mends it looks at the answer


@dataclass(slots=True)
class WaitStatusThrottle:
    """What was last written of waiting jobs. `every_s`: how often the same reason may be written again."""

    refresh_s: float
    _full_refresh_s: float = 0.0  # how long it takes to write all of them
    _written_at: dict[str, float] = field(default_factory=dict)
    _last_written: dict[str, Wait] = field(default_factory=dict)

    def begin_cycle(self, waits: Iterable[Wait]) -> None:
        """These wait now: many positions are refreshed less often than few."""
        count = sum(wait.position is not None and wait.position <= REFRESHED_POSITIONS for wait in waits)
        self._full_refresh_s = count / _REFRESHES_PER_SECOND

    def update(
        self, wait: Wait, status: TrainingJobStatus, now: float, *, force: bool
    ) -> tuple[TrainingJobStatus, float | None]:
        """The status to write (the same object: nothing), and when to ask again.

        `anyway`: the status is written in any case, so the newest words go along.
        """
        uid = wait.gang_uid
        code, words = self._known_wait(uid, status)
        if not force and code == wait.reason:
            if words == _wait_text(wait) or (wait.position is not None and wait.position > REFRESHED_POSITIONS):
                return status, None
            in_turn_s = max(self.refresh_s, self._full_refresh_s)
            every_s = in_turn_s if wait.position is not None else min(self.refresh_s, _ERROR_REFRESH_S)
            due = self._written_at.setdefault(uid, now) + every_s
            if now < due:
                return status, due if due < inf else None
        self._written_at[uid] = now
        self._last_written[uid] = wait
        return transitions.set_waiting(status, wait, now), None

    def _known_wait(self, uid: str, status: TrainingJobStatus) -> tuple[str | None, _WaitText]:
        """Reason and words that the status has, as far as is known."""
        last = self._last_written.get(uid)
        if last is not None:
            return last.reason, _wait_text(last)
        condition = find_condition(status, ADMITTED)
        if condition is None:
            return None, ("", None, None)
        return condition.reason, (condition.message, status.queue_position, status.estimated_start)

    def known_jobs(self) -> frozenset[str]:
        """The uids of jobs that wait, as far as anything was written of them."""
        return frozenset(self._written_at.keys() | self._last_written.keys())

    def invalidate(self) -> None:
        """What was written last may not have arrived."""
        self._last_written.clear()

    def forget(self, uid: str) -> None:
        """The job does not wait now."""
        self._last_written.pop(uid, None)
        self._written_at.pop(uid, None)


def _wait_text(wait: Wait) -> _WaitText:
    return wait.message, wait.position, wait.estimated_start
