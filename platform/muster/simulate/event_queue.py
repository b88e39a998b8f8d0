"""A virtual clock and what is going to happen on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class EventQueue:
    """Time stands still but for `advance`. What happens at the same time happens in the order it was put down."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._items: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()

    def schedule(self, when: float, callback: Callable[[], None]) -> None:
        """Put something on the agenda."""
        heapq.heappush(self._items, (when, next(self._sequence), callback))

    def next_time(self) -> float | None:
        """When something happens next."""
        return self._items[0][0] if self._items else None

    def schedule_now(self) -> None:
        """Make now a time at which something happens: whoever waits for that has to look again."""
        if self.next_time() != self.now:
            self.schedule(self.now, _no_op)

    def advance(self, to: float) -> None:
        """Let time pass until `to`; all that is due by then happens, in order."""
        while self._items and self._items[0][0] <= to:
            when, _, act = heapq.heappop(self._items)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, to)


def _no_op() -> None:
    """An event that only wakes."""
