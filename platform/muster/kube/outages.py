"""Whether the watches are current with respect to the last outage of the API server.

After an outage watches resume one by one, each with its own backoff, and some have to list again. Decisions in between
would combine new pods with old jobs, and for example create pods for a job that was deleted meanwhile. So an outage,
whichever request detects it, closes every watch; everything is listed again once the API server answers, and until then
nothing is decided and nothing is written.

An outage is a request that could not be sent, or a read whose connection broke before an answer. A slow answer is not,
since a webhook may cause it; nor is a watch that ends and can be opened again; nor a write whose connection broke,
since a proxy may reset those of one object only: a request follows that finds out (`NoAnswer`).

As each outage costs listing everything, lists after repeated outages are delayed with backoff.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.backoff import Backoff

_REPEAT_WINDOW_S = 30.0  # after everything was listed


class Outages:
    """Outages of one API server, as detected by all its clients. `count`: how many there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._in_outage = False  # not everything was listed since the last outage
        self._recovered_at = float("-inf")  # when everything was listed after the last outage
        self._repeats = Backoff(0.2, 15.0)  # outages that follow soon after another
        self.reachable = asyncio.Event()
        """The newest request was answered, with whatever code; set initially."""
        # by resource: the count when its last complete list started; -1 while it is being listed
        self._listed_counts: dict[str, int] = {}
        self._watches: set[asyncio.Timeout] = set()
        self._synced = asyncio.Event()
        self.reachable.set()
        self._synced.set()

    def is_synced(self) -> bool:
        """Whether all resources were listed since the last outage and no list is in progress."""
        return self._synced.is_set()

    def unsynced(self) -> list[str]:
        """Resources not listed since the last outage, or being listed."""
        return [resource for resource, count in self._listed_counts.items() if count != self.count]

    async def wait_until_synced(self) -> None:
        await self._synced.wait()

    def record_unreachable(self) -> None:
        if not self._in_outage:
            self._start_outage()
        self.count += 1
        self.reachable.clear()
        for watch in self._watches:
            watch.reschedule(0.0)
        self._watches.clear()  # a watch that is ending must not be rescheduled by the next failure
        self._update_synced()

    def record_answer(self) -> None:
        self.reachable.set()

    def list_delay_s(self) -> float:
        """Seconds to wait before a list: 0 unless outages follow soon after one another."""
        return max(0.0, self._repeats.retry_at - self._clock())

    def list_started(self, resource: str) -> int:
        """A list of this resource starts; returns the count for `list_completed`."""
        self._listed_counts[resource] = -1
        self._update_synced()
        return self.count

    def list_completed(self, resource: str, count: int) -> None:
        """The list that started at this count is complete."""
        self._listed_counts[resource] = count
        self._update_synced()

    @contextmanager
    def cancel_on_outage(self, watch: asyncio.Timeout) -> Iterator[None]:
        """Context in which a watch ends with TimeoutError at the next outage."""
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)

    def _start_outage(self) -> None:
        now = self._clock()
        self._in_outage = True
        if now - self._recovered_at < _REPEAT_WINDOW_S:
            self._repeats.fail(now)
        else:
            self._repeats.reset()

    def _update_synced(self) -> None:
        if all(count == self.count for count in self._listed_counts.values()):
            self._synced.set()
            if self._in_outage and self._listed_counts:
                self._in_outage, self._recovered_at = False, self._clock()
        else:
            self._synced.clear()
