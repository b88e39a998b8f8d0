"""When the status of a waiting job is written.

The first result and a new reason at once; otherwise at most once a minute, for all jobs together ten per second on
average; errors of the job itself every five seconds. Positions and estimates change with every plan; writing them all
would cost more than planning. Current values are in the `waits` of a cycle's result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from muster.api.spec import TrainingJobStatus
from muster.lifecycle import find_condition, transitions
from muster.lifecycle.conditions import ADMITTED
from muster.model import Wait
from muster.state import JobEntry

_WaitText: TypeAlias = tuple[str, int | None, float | None]
REFRESHED_POSITIONS = 100  # positions of a queue that are refreshed
_REFRESHES_PER_SECOND = 10.0  # for all jobs together
_ERROR_REFRESH_S = 5.0  # errors of the job itself: its owner watches the result while fixing it


@dataclass(slots=True)
class WaitStatusThrottle:
    """How often is written why jobs wait. `refresh_s`: seconds until the same reason is written again."""

    refresh_s: float
    _full_refresh_s: float = 0.0  # how long it takes to write all of them

    def begin_cycle(self, waits: Iterable[Wait]) -> None:
        """These jobs wait now: with many jobs each position is refreshed less often."""
        count = sum(wait.position is not None and wait.position <= REFRESHED_POSITIONS for wait in waits)
        self._full_refresh_s = count / _REFRESHES_PER_SECOND

    def update(
        self, entry: JobEntry, wait: Wait, status: TrainingJobStatus, now: float, *, force: bool
    ) -> tuple[TrainingJobStatus, float | None]:
        """The status to write (the same object: nothing), and when to call again. The entry records what is written.

        `force`: the status is written in any case, so it gets the newest message.
        """
        code, text = _written_wait(entry, status)
        if not force and code == wait.reason:
            if text == _wait_text(wait) or (wait.position is not None and wait.position > REFRESHED_POSITIONS):
                return status, None
            in_turn_s = max(self.refresh_s, self._full_refresh_s)
            every_s = in_turn_s if wait.position is not None else min(self.refresh_s, _ERROR_REFRESH_S)
            if entry.wait_written_at is None:
                entry.wait_written_at = now
            due = entry.wait_written_at + every_s
            if now < due:
                return status, due if due < inf else None
        entry.wait, entry.wait_written_at = wait, now
        return transitions.set_waiting(status, wait, now), None


def _written_wait(entry: JobEntry, status: TrainingJobStatus) -> tuple[str | None, _WaitText]:
    """Reason and message in the status, as far as known."""
    if entry.wait is not None:
        return entry.wait.reason, _wait_text(entry.wait)
    condition = find_condition(status, ADMITTED)
    if condition is None:
        return None, ("", None, None)
    return condition.reason, (condition.message, status.queue_position, status.estimated_start)


def _wait_text(wait: Wait) -> _WaitText:
    return wait.message, wait.position, wait.estimated_start
