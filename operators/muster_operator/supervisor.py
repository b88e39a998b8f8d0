"""Parts of the operator that never end: one that fails begins anew, after a pause that grows.

What they work on was written by anybody. If one object could end the process, it would end the next leader's too, and
nobody's job would start until somebody finds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

_LOG = logging.getLogger("muster.operator")
BACKOFF_S = (1.0, 60.0)
_RESET_AFTER_S = 300.0  # who has worked for so long begins with the shortest pause again


class Backoff:
    """How long to rest after each failure: longer every time, as long as failures follow each other."""

    def __init__(self, bounds_s: tuple[float, float] = BACKOFF_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._min_s, self._max_s = bounds_s
        self._clock = clock
        self._failures = 0
        self._last_failure_at: float | None = None

    def next_s(self) -> float:
        """It failed: seconds to rest now."""
        now = self._clock()
        if self._last_failure_at is not None and now - self._last_failure_at > _RESET_AFTER_S:
            self._failures = 0
        self._last_failure_at = now
        self._failures += 1
        return min(self._max_s, self._min_s * 2.0 ** min(self._failures - 1, 30))


async def supervise(name: str, component: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run a part until cancelled. `failed` is told of each failure, which the log has in full."""
    pauses = Backoff()
    while True:
        try:
            await component()
        except Exception:
            pause_s = pauses.next_s()
            _LOG.exception("a component failed", extra={"component": name, "again_in_s": pause_s})
            on_failure(name)
            await asyncio.sleep(pause_s)
