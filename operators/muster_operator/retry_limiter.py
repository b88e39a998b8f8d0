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
from muster_operator.kube.client import ApiError

_LOG = logging.getLogger("muster.operator")
INVALID_REQUEST_CODES = frozenset({400, 403, 404, 413, 422})
"""Answers that say what is wrong with an object. All others may be over in a moment."""

_SERVER_WIDE_CODES = frozenset({401, 429})
_MAX_BACKOFF_S = 30.0
_MIN_BACKOFF_S = 1.0
_MIN_INVALID_BACKOFF_S = 5.0  # for whoever may mend what the API server refuses
_MAX_ENTRIES = 50_000


def is_server_wide(error: ClusterError) -> bool:
    """Whether no write of another object would fare better now."""
    return not isinstance(error, ApiError) or error.code in _SERVER_WIDE_CODES


@dataclass(slots=True)
class _RetryState:
    failures: int = 0  # in which something was refused, one after the other
    backoff_s: float = 0.0
    until: float = 0.0
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True)
class RetryLimiter:
    """By object (a job's uid, or an address), since it was last written whole."""

    clock: Callable[[], float] = time.monotonic
    _states: dict[str, _RetryState] = field(default_factory=dict)

    def record_failure(self, key: str, invalid: bool) -> None:
        """Something of it was refused in this round. To be told once a round."""
        if len(self._states) >= _MAX_ENTRIES and key not in self._states:
            self._states.clear()  # only begins with short pauses again
        streak = self._states.setdefault(key, _RetryState())
        streak.failures += 1
        first_s = _MIN_INVALID_BACKOFF_S if invalid else _MIN_BACKOFF_S
        streak.backoff_s = min(_MAX_BACKOFF_S, first_s * 2.0 ** min(streak.failures - 1, 10))
        streak.until = self.clock() + streak.backoff_s

    def record_write_failure(self, key: str, error: ApiError) -> None:
        """As `note`; the log tells once."""
        self.record_failure(key, error.code in INVALID_REQUEST_CODES)
        if self.first_report(key, "write refused"):
            _LOG.error("write refused", extra={"of": key, "why": str(error)})

    def may_retry(self, key: str) -> bool:
        """Whether its pause is over, if it has one."""
        streak = self._states.get(key)
        return streak is None or self.clock() >= streak.until

    def failures(self, key: str) -> int:
        """In how many rounds it was refused, one after the other."""
        streak = self._states.get(key)
        return 0 if streak is None else streak.failures

    def end_backoffs(self) -> None:
        """Who began to wait for the end of a pause waits no more."""
        for streak in self._states.values():
            streak.until = 0.0

    def backoff_s(self, key: str) -> float:
        """After how many seconds to try again."""
        streak = self._states.get(key)
        return _MIN_BACKOFF_S if streak is None else streak.backoff_s

    def has_repeated(self, key: str) -> bool:
        """Whether it was refused in more than one round."""
        streak = self._states.get(key)
        return streak is not None and streak.failures > 1

    def first_report(self, key: str, reason: str) -> bool:
        """Whether nobody was told so of it yet, since it is refused; from now on somebody was."""
        streak = self._states.setdefault(key, _RetryState())
        if reason in streak.reported:
            return False
        streak.reported.add(reason)
        return True

    def reset(self, key: str) -> None:
        """Everything of it was written."""
        self._states.pop(key, None)
