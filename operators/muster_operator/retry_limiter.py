"""Backoff by object for writes that the API server rejects or fails: a webhook of one namespace is down, a policy
forbids a delete, a quota is contended. Only that object waits, and its job states the reason.

Errors that affect all objects are different: no answer, a lost Lease, failed authentication, too many requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.backoff import Backoff
from muster.errors import ClusterError
from muster.kube.async_client import ApiError

_LOG = logging.getLogger("muster.operator")
INVALID_REQUEST_CODES = frozenset({400, 403, 404, 413, 422})
"""Codes that mean that the request is invalid. All others may be transient."""

_SERVER_WIDE_CODES = frozenset({401, 429})
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_MIN_INVALID_PAUSE_S = 5.0  # for rejections that a user has to fix
_MAX_ENTRIES = 50_000


def is_server_wide(error: ClusterError) -> bool:
    """Whether writes of other objects would fail as well."""
    return not isinstance(error, ApiError) or error.code in _SERVER_WIDE_CODES


@dataclass(slots=True)
class _RetryState:
    backoff: Backoff = field(default_factory=lambda: Backoff(_MIN_PAUSE_S, _MAX_PAUSE_S))  # of cycles with a rejection
    pause_s: float = 0.0
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True)
class RetryLimiter:
    """By object (a job's uid, or a path), since its last complete write."""

    clock: Callable[[], float] = time.monotonic
    _states: dict[str, _RetryState] = field(default_factory=dict)

    def record_failure(self, key: str, invalid: bool) -> None:
        """Count a rejection; call once per cycle."""
        if len(self._states) >= _MAX_ENTRIES and key not in self._states:
            self._states.clear()  # costs only shorter pauses
        state = self._states.setdefault(key, _RetryState())
        state.backoff.min_s = _MIN_INVALID_PAUSE_S if invalid else _MIN_PAUSE_S
        state.pause_s = state.backoff.fail(self.clock())

    def record_write_failure(self, key: str, error: ApiError) -> None:
        """As `record_failure`, logged once."""
        self.record_failure(key, error.code in INVALID_REQUEST_CODES)
        if self.first_report(key, "write refused"):
            _LOG.error("write refused", extra={"of": key, "why": str(error)})

    def may_retry(self, key: str) -> bool:
        """Whether the object has no pause at present."""
        state = self._states.get(key)
        return state is None or self.clock() >= state.backoff.retry_at

    def failures(self, key: str) -> int:
        """Consecutive cycles in which it was rejected."""
        state = self._states.get(key)
        return 0 if state is None else state.backoff.failures

    def end_backoffs(self) -> None:
        """End all pauses: the timers for their ends are gone."""
        for state in self._states.values():
            state.backoff.retry_at = float("-inf")

    def backoff_s(self, key: str) -> float:
        """Seconds until the next try."""
        state = self._states.get(key)
        return _MIN_PAUSE_S if state is None else state.pause_s

    def has_repeated(self, key: str) -> bool:
        """Whether it was rejected in more than one cycle."""
        return self.failures(key) > 1

    def first_report(self, key: str, reason: str) -> bool:
        """Whether this is the first report of this reason since the rejections began; later calls return False."""
        state = self._states.setdefault(key, _RetryState())
        if reason in state.reported:
            return False
        state.reported.add(reason)
        return True

    def reset(self, key: str) -> None:
        """Everything of the object was written."""
        self._states.pop(key, None)
