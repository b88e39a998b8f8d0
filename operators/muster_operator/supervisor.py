"""Restarts components of the operator that fail, with backoff.

Their input is written by users. If one object could end the process it would end the next leader as well, and no job
would start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

_LOG = logging.getLogger("muster.operator")
BACKOFF_S = (1.0, 60.0)
_RESET_AFTER_S = 300.0  # a component that ran for so long starts with the shortest backoff again


class Backoff:
    """Exponential backoff of consecutive failures."""

    def __init__(self, bounds_s: tuple[float, float] = BACKOFF_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._min_s, self._max_s = bounds_s
        self._clock = clock
        self._failures = 0
        self._last_failure_at: float | None = None

    def next_s(self) -> float:
        """Record a failure; seconds to wait."""
        now = self._clock()
        if self._last_failure_at is not None and now - self._last_failure_at > _RESET_AFTER_S:
            self._failures = 0
        self._last_failure_at = now
        self._failures += 1
        return min(self._max_s, self._min_s * 2.0 ** min(self._failures - 1, 30))


async def supervise(name: str, component: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run a component until cancelled, with restarts. `on_failure` is called on each failure, after it was logged."""
    pauses = Backoff()
    while True:
        try:
            await component()
        except Exception:
            pause_s = pauses.next_s()
            _LOG.exception("component failed", extra={"component": name, "again_in_s": pause_s})
            on_failure(name)
            await asyncio.sleep(pause_s)
