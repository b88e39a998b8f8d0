"""What the API server refuses of one object, or fails at, is that object's own trouble: a webhook of one namespace is
down, a policy forbids a delete, a quota is contended. Nobody else waits for it; it is tried again, after pauses that
grow, and whoever looks at the job reads why.

Other troubles are everybody's: no answer, a Lease that is lost, a login that is not accepted, too many calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.errors import ClusterError
from muster_operator.kube.api import ApiError

_LOG = logging.getLogger("muster.operator")
FORBIDDEN = frozenset({400, 403, 404, 413, 422})
"""Answers that say what is wrong with an object. All others may be over in a moment."""

_EVERYBODYS = frozenset({401, 429})
_LONGEST_S = 30.0
_FIRST_S = 1.0
_FIRST_FORBIDDEN_S = 5.0  # for whoever may mend what the API server refuses
_MOST = 50_000


def concerns_everybody(error: ClusterError) -> bool:
    """Whether no write of another object would fare better now."""
    return not isinstance(error, ApiError) or error.code in _EVERYBODYS


@dataclass(slots=True)
class _Streak:
    rounds: int = 0  # in which something was refused, one after the other
    pause_s: float = 0.0
    until: float = 0.0
    told: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Refusals:
    """By object (a job's uid, or an address), since it was last written whole."""

    clock: Callable[[], float] = time.monotonic
    _streaks: dict[str, _Streak] = field(default_factory=dict)

    def note(self, of: str, forbidden: bool) -> None:
        """Something of it was refused in this round. To be told once a round."""
        if len(self._streaks) >= _MOST and of not in self._streaks:
            self._streaks.clear()  # only begins with short pauses again
        streak = self._streaks.setdefault(of, _Streak())
        streak.rounds += 1
        first_s = _FIRST_FORBIDDEN_S if forbidden else _FIRST_S
        streak.pause_s = min(_LONGEST_S, first_s * 2.0 ** min(streak.rounds - 1, 10))
        streak.until = self.clock() + streak.pause_s

    def write_refused(self, of: str, error: ApiError) -> None:
        """As `note`; the log tells once."""
        self.note(of, error.code in FORBIDDEN)
        if self.is_news(of, "write refused"):
            _LOG.error("write refused", extra={"of": of, "why": str(error)})

    def may_try(self, of: str) -> bool:
        """Whether its pause is over, if it has one."""
        streak = self._streaks.get(of)
        return streak is None or self.clock() >= streak.until

    def rounds(self, of: str) -> int:
        """In how many rounds it was refused, one after the other."""
        streak = self._streaks.get(of)
        return 0 if streak is None else streak.rounds

    def end_pauses(self) -> None:
        """Who began to wait for the end of a pause waits no more."""
        for streak in self._streaks.values():
            streak.until = 0.0

    def pause_s(self, of: str) -> float:
        """After how many seconds to try again."""
        streak = self._streaks.get(of)
        return _FIRST_S if streak is None else streak.pause_s

    def lasts(self, of: str) -> bool:
        """Whether it was refused in more than one round."""
        streak = self._streaks.get(of)
        return streak is not None and streak.rounds > 1

    def is_news(self, of: str, reason: str) -> bool:
        """Whether nobody was told so of it yet, since it is refused; from now on somebody was."""
        streak = self._streaks.setdefault(of, _Streak())
        if reason in streak.told:
            return False
        streak.told.add(reason)
        return True

    def over(self, of: str) -> None:
        """Everything of it was written."""
        self._streaks.pop(of, None)
