"""Whether what watches show is as new as the last time the API server could not be reached.

After an outage the watches come back one by one, each after a backoff of its own, and some have to list again. Whoever
decides in between sees pods as of now and jobs as of before the outage: it would create pods for a job that somebody
has deleted meanwhile. So an outage, whichever call notices it, closes every watch; all is listed again at once when the
API server answers, and until that is done nothing is decided and nothing is written.

An outage is a request that could not be sent or whose connection broke before an answer. A slow answer is none, since
one webhook may cause it; nor is a watch that ends, if it can be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Outages:
    """Of one API server, as all its clients notice them. `count` is how often it could not be reached."""

    def __init__(self) -> None:
        self.count = 0
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
        self.count += 1
        self.reachable.clear()
        for watch in self._watches:
            watch.reschedule(0.0)
        self._watches.clear()  # one that ends already must not be rescheduled by the next call that fails
        self._look()

    def answered(self) -> None:
        """A call had an answer."""
        self.reachable.set()

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

    def _look(self) -> None:
        if all(count == self.count for count in self._listed.values()):
            self._current.set()
        else:
            self._current.clear()
