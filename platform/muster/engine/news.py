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

from muster.lifecycle import find, moves
from muster.lifecycle.conditions import ADMITTED
from muster.model import Wait
from muster.spec import TrainingJobStatus

_Words: TypeAlias = tuple[str, int | None, float | None]
REFRESHED = 100  # positions of a queue that are refreshed
_REFRESHED_A_SECOND = 10.0  # altogether
_FAULT_S = 5.0  # what is wrong with a job that stands in no line: whoever mends it looks at the answer


@dataclass(slots=True)
class News:
    """What was last written of waiting jobs. `every_s`: how often the same reason may be written again."""

    every_s: float
    _turn_s: float = 0.0  # how long it takes to write all of them
    _written_at: dict[str, float] = field(default_factory=dict)
    _told: dict[str, Wait] = field(default_factory=dict)

    def begin(self, waits: Iterable[Wait]) -> None:
        """These wait now: many positions are refreshed less often than few."""
        count = sum(wait.position is not None and wait.position <= REFRESHED for wait in waits)
        self._turn_s = count / _REFRESHED_A_SECOND

    def tell(
        self, wait: Wait, status: TrainingJobStatus, now: float, *, anyway: bool
    ) -> tuple[TrainingJobStatus, float | None]:
        """The status to write (the same object: nothing), and when to ask again.

        `anyway`: the status is written in any case, so the newest words go along.
        """
        uid = wait.gang
        code, words = self._written(uid, status)
        if not anyway and code == wait.code:
            if words == _words(wait) or (wait.position is not None and wait.position > REFRESHED):
                return status, None
            in_turn_s = max(self.every_s, self._turn_s)
            every_s = in_turn_s if wait.position is not None else min(self.every_s, _FAULT_S)
            due = self._written_at.setdefault(uid, now) + every_s
            if now < due:
                return status, due if due < inf else None
        self._written_at[uid] = now
        self._told[uid] = wait
        return moves.wait(status, wait, now), None

    def _written(self, uid: str, status: TrainingJobStatus) -> tuple[str | None, _Words]:
        """Reason and words that the status has, as far as is known."""
        last = self._told.get(uid)
        if last is not None:
            return last.code, _words(last)
        condition = find(status, ADMITTED)
        if condition is None:
            return None, ("", None, None)
        return condition.reason, (condition.message, status.queue_position, status.estimated_start)

    def known(self) -> frozenset[str]:
        """The uids of jobs that wait, as far as anything was written of them."""
        return frozenset(self._written_at.keys() | self._told.keys())

    def doubt(self) -> None:
        """What was written last may not have arrived."""
        self._told.clear()

    def forget(self, uid: str) -> None:
        """The job does not wait now."""
        self._told.pop(uid, None)
        self._written_at.pop(uid, None)


def _words(wait: Wait) -> _Words:
    return wait.message, wait.position, wait.estimated_start
