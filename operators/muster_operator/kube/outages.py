"""Whether what watches show is as new as the last time the API server could not be reached.

After an outage the watches come back one by one, each after a backoff of its own, and some have to list again. Whoever
decides in between sees pods as of now and jobs as of before the outage: it would create pods for a job that somebody
has deleted meanwhile. So an outage, whichever call notices it, closes every watch; all is listed again at once when the
API server answers, and until that is done nothing is decided and nothing is written.

An outage is a request that could not be sent or whose connection broke before an answer. A slow answer is none, since
one webhook may cause it; nor is a watch that ends, if it can be opened again.

A connection that is reset for one object only, by a proxy say, looks the same from here. Each such outage costs a list
of everything; so where one follows soon after another, the lists come after a pause that grows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PAUSE_S = (0.2, 15.0)  # before lists after an outage that follows soon after another
_SOON_S = 30.0  # after everything was listed


class Outages:
    """Of one API server, as all its clients notice them. `count` is how often it could not be reached."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._out = False  # since the last outage not everything was listed
        self._over_at = float("-inf")  # when everything was listed after the last outage
        self._repeated = 0  # outages, each soon after the one before
        self._list_at = float("-inf")
        self.reachable = asyncio.Event()
        """The newest call had an answer, whatever it was; set at first."""
        self._listed: dict[str, int] = {}  # by resource: the count before its newest whole list; -1 while it is listed
        self._watches: set[asyncio.Timeout] = set()
        self._current = asyncio.Event()
        self.reachable.set()
        self._current.set()

    def current(self) -> bool:
        """Whether all resources were listed since the last outage, and none is being listed again."""
        return self._current.is_set()

    def missing(self) -> list[str]:
        """What was not listed since the last outage, or is being listed again."""
        return [resource for resource, count in self._listed.items() if count != self.count]

    async def wait_until_current(self) -> None:
        """Until `current`."""
        await self._current.wait()

    def lost(self) -> None:
        """A call could not reach the API server."""
        if not self._out:
            self._begin()
        self.count += 1
        self.reachable.clear()
        for watch in self._watches:
            watch.reschedule(0.0)
        self._watches.clear()  # one that ends already must not be rescheduled by the next call that fails
        self._look()

    def answered(self) -> None:
        """A call had an answer."""
        self.reachable.set()

    def list_in_s(self) -> float:
        """Seconds to wait before anything is listed: 0 unless outages follow soon after one another."""
        return max(0.0, self._list_at - self._clock())

    def lists(self, resource: str) -> int:
        """A list of this resource begins; the count to pass to `listed`."""
        self._listed[resource] = -1
        self._look()
        return self.count

    def listed(self, resource: str, count: int) -> None:
        """The list that began at this count is complete."""
        self._listed[resource] = count
        self._look()

    @contextmanager
    def ends(self, watch: asyncio.Timeout) -> Iterator[None]:
        """Within, the watch in this scope ends with TimeoutError at the next outage."""
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)

    def _begin(self) -> None:
        now, (least, most) = self._clock(), _PAUSE_S
        self._out = True
        self._repeated = self._repeated + 1 if now - self._over_at < _SOON_S else 0
        pause_s = min(most, least * 2.0 ** min(self._repeated - 1, 20)) if self._repeated else 0.0
        self._list_at = now + pause_s

    def _look(self) -> None:
        if all(count == self.count for count in self._listed.values()):
            self._current.set()
            if self._out and self._listed:
                self._out, self._over_at = False, self._clock()
        else:
            self._current.clear()
