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

_RELIST_BACKOFF_S = (0.2, 15.0)  # before lists after an outage that follows soon after another
_REPEAT_WINDOW_S = 30.0  # after everything was listed


class Outages:
    """Of one API server, as all its clients notice them. `count` is how often it could not be reached."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._in_outage = False  # since the last outage not everything was listed
        self._recovered_at = float("-inf")  # when everything was listed after the last outage
        self._consecutive = 0  # outages, each soon after the one before
        self._next_list_at = float("-inf")
        self.reachable = asyncio.Event()
        """The newest call had an answer, whatever it was; set at first."""
        self._listed_counts: dict[
            str, int
        ] = {}  # by resource: the count before its newest whole list; -1 while it is listed
        self._watches: set[asyncio.Timeout] = set()
        self._synced = asyncio.Event()
        self.reachable.set()
        self._synced.set()

    def is_synced(self) -> bool:
        """Whether all resources were listed since the last outage, and none is being listed again."""
        return self._synced.is_set()

    def unsynced(self) -> list[str]:
        """What was not listed since the last outage, or is being listed again."""
        return [resource for resource, count in self._listed_counts.items() if count != self.count]

    async def wait_until_synced(self) -> None:
        """Until `current`."""
        await self._synced.wait()

    def record_unreachable(self) -> None:
        """A call could not reach the API server."""
        if not self._in_outage:
            self._start_outage()
        self.count += 1
        self.reachable.clear()
        for watch in self._watches:
            watch.reschedule(0.0)
        self._watches.clear()  # one that ends already must not be rescheduled by the next call that fails
        self._update_synced()

    def record_answer(self) -> None:
        """A call had an answer."""
        self.reachable.set()

    def list_delay_s(self) -> float:
        """Seconds to wait before anything is listed: 0 unless outages follow soon after one another."""
        return max(0.0, self._next_list_at - self._clock())

    def list_started(self, resource: str) -> int:
        """A list of this resource begins; the count to pass to `listed`."""
        self._listed_counts[resource] = -1
        self._update_synced()
        return self.count

    def list_completed(self, resource: str, count: int) -> None:
        """The list that began at this count is complete."""
        self._listed_counts[resource] = count
        self._update_synced()

    @contextmanager
    def cancel_on_outage(self, watch: asyncio.Timeout) -> Iterator[None]:
        """Within, the watch in this scope ends with TimeoutError at the next outage."""
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)

    def _start_outage(self) -> None:
        now, (least, most) = self._clock(), _RELIST_BACKOFF_S
        self._in_outage = True
        self._consecutive = self._consecutive + 1 if now - self._recovered_at < _REPEAT_WINDOW_S else 0
        pause_s = min(most, least * 2.0 ** min(self._consecutive - 1, 20)) if self._consecutive else 0.0
        self._next_list_at = now + pause_s

    def _update_synced(self) -> None:
        if all(count == self.count for count in self._listed_counts.values()):
            self._synced.set()
            if self._in_outage and self._listed_counts:
                self._in_outage, self._recovered_at = False, self._clock()
        else:
            self._synced.clear()
