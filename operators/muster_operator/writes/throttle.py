"""When writes that nothing depends on may be made: during a burst of urgent work they wait, and then get a share."""

from __future__ import annotations

import time
from collections.abc import Callable

_EXCLUSIVE_S = 60.0
_STALL_S = 2.0
_DEFERRED_SHARE, _MIN_DEFERRED_PER_S = 0.1, 10.0  # of all writes, during a long burst
_MAX_BUDGET = 256.0


class WriteThrottle:
    """Delays deferrable writes while urgent work (`has_urgent_work`) makes progress (`progress` grows).

    Urgent work without progress for 2 s does not count. After a minute deferrable writes get a tenth of all writes, and
    at least ten a second (`take_budget`).
    """

    def __init__(
        self,
        has_urgent_work: Callable[[], bool],
        progress: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_urgent_work = has_urgent_work
        self._progress = progress
        self._clock = clock
        self._active_since: float | None = None
        self._last_progress = -1
        self._progressed_at = 0.0
        self._budget, self._budget_updated_at = 0.0, 0.0

    def is_active(self) -> bool:
        """Whether deferrable writes are limited now."""
        now, progress = self._clock(), self._progress()
        if progress != self._last_progress:
            self._last_progress, self._progressed_at = progress, now
        if not self._has_urgent_work():
            self._active_since = None
            return False
        if self._active_since is None:
            self._active_since = self._progressed_at = now
        return now - self._progressed_at < _STALL_S

    def blocks_deferred_writes(self) -> bool:
        """Whether deferrable writes are blocked: the first minute of a burst."""
        return self.is_active() and self._active_since is not None and self._clock() - self._active_since < _EXCLUSIVE_S

    def record_writes(self, count: int) -> None:
        """Count other writes, which add to the budget."""
        self._budget = min(_MAX_BUDGET, self._budget + _DEFERRED_SHARE * count)

    def take_budget(self, limit: int) -> int:
        """How many deferrable writes may be made now, at most `limit`; they are taken from the budget."""
        if not self.is_active():
            return limit
        now = self._clock()
        if self.blocks_deferred_writes():
            self._budget, self._budget_updated_at = 0.0, now
            return 0
        self._budget = min(_MAX_BUDGET, self._budget + _MIN_DEFERRED_PER_S * (now - self._budget_updated_at))
        self._budget_updated_at = now
        count = min(limit, int(self._budget))
        self._budget -= count
        return count
