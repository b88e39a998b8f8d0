"""Events, written whenever nothing more pressing waits: they tell people, and nothing depends on them.

They come the slower the slower the API server answers, since each costs others the more then; while it does not answer,
they wait. Warnings come first, and every fourth time the others. What waits for too long, or has too many behind it, is
dropped and counted, the oldest first, warnings last of all. One that would come too late to tell anybody anything is
not sent: that a job was admitted, once it has ended (`Letter.instead`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster_operator.kube.client import METADATA_ONLY, ApiError, ApiServerClient
from muster_operator.kube.resources import EVENTS

_LOG = logging.getLogger("muster.operator")
_MAX_PENDING = 20_000
_MAX_AGE_S = 900.0  # of those that are no warnings
_NORMAL_EVERY = 4
_SENDERS = 4
_POLL_S = 0.05
_INTERVAL_FACTOR, _MAX_INTERVAL_S = 9.0, 2.0  # of what sending one took, waiting in line for the API server included


def _monotonic() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An Event, and the namespace it belongs to."""

    namespace: str
    manifest: dict[str, Any]
    key: str = ""  # what it tells of whom
    supersedes: str = ""  # what another one was about that is not sent any more if it waits still
    queued_at: float = field(default_factory=_monotonic, compare=False)

    @property
    def is_warning(self) -> bool:
        """Whether it tells of something that somebody may have to act on."""
        return bool(self.manifest.get("type") == "Warning")


class EventRecorder:
    """`busy` tells whether more pressing writes are on their way."""

    def __init__(self, api: ApiServerClient, busy: Callable[[], bool], on_drop: Callable[[], None]) -> None:
        self._api = api
        self._busy = busy
        self._on_drop = on_drop
        self._warnings: OrderedDict[int, PendingEvent] = OrderedDict()  # oldest first
        self._normal: OrderedDict[int, PendingEvent] = OrderedDict()
        self._by_key: dict[str, int] = {}
        self._sequence = 0
        self._sent = 0
        self._not_empty = asyncio.Event()

    def enqueue(self, event: PendingEvent) -> None:
        """Send it when there is time."""
        if event.supersedes in self._by_key:
            number = self._by_key.pop(event.supersedes)
            (self._warnings if number in self._warnings else self._normal).pop(number)
        if len(self) >= _MAX_PENDING:
            self._on_drop()
            if not self._normal and not event.is_warning:
                return
            self._take(self._normal or self._warnings)
        self._sequence += 1
        (self._warnings if event.is_warning else self._normal)[self._sequence] = event
        if event.key:
            self._by_key[event.key] = self._sequence
        self._not_empty.set()

    def clear(self) -> None:
        """Forget what was not sent: somebody else leads."""
        for _ in range(len(self)):
            self._on_drop()
        self._warnings.clear()
        self._normal.clear()
        self._by_key.clear()

    def pending(self) -> list[PendingEvent]:
        """What was not sent yet: warnings, then others, oldest first."""
        return [*self._warnings.values(), *self._normal.values()]

    def __len__(self) -> int:
        return len(self._warnings) + len(self._normal)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(_SENDERS):
                senders.create_task(self._run_sender())

    def _next(self) -> tuple[int, PendingEvent] | None:
        """The next one, with its number; None where what waited was worth nothing any more."""
        while self._normal and next(iter(self._normal.values())).queued_at < _monotonic() - _MAX_AGE_S:
            self._take(self._normal)
            self._on_drop()
        if not len(self):
            return None
        self._sent += 1
        if self._sent % _NORMAL_EVERY == 0:
            return self._take(self._normal or self._warnings)
        return self._take(self._warnings or self._normal)

    def _take(self, events: OrderedDict[int, PendingEvent]) -> tuple[int, PendingEvent]:
        number, letter = events.popitem(last=False)
        if self._by_key.get(letter.key) == number:
            del self._by_key[letter.key]
        return number, letter

    def _requeue(self, number: int, event: PendingEvent) -> None:
        """It was not sent, and is the next one again."""
        letters = self._warnings if event.is_warning else self._normal
        letters[number] = event
        letters.move_to_end(number, last=False)
        if event.key:
            self._by_key.setdefault(event.key, number)

    async def _run_sender(self) -> None:
        while True:
            while not len(self):
                self._not_empty.clear()
                await self._not_empty.wait()
            while self._busy():  # noqa: ASYNC110 - what it waits for is a rate, not an event
                await asyncio.sleep(_POLL_S)
            if (following := self._next()) is None:
                continue
            began, rest_s = _monotonic(), 0.0
            try:
                await self._post(following[1])
            except ClusterError as error:  # there was no answer, or we may not write just now
                self._requeue(*following)
                rest_s = _MAX_INTERVAL_S
                _LOG.debug("event not recorded yet", extra={"why": str(error)})
            await asyncio.sleep(rest_s or min(_MAX_INTERVAL_S, _INTERVAL_FACTOR * (_monotonic() - began)))

    async def _post(self, event: PendingEvent) -> None:
        """Send it, or drop it if it is refused. Raises ClusterError where nobody knows."""
        try:
            body = msgspec.json.encode(event.manifest)
            await self._api.post(EVENTS.path(event.namespace), body, accept=METADATA_ONLY)
        except Exception as error:  # whatever is wrong with one, the others are sent
            if isinstance(error, ClusterError) and not isinstance(error, ApiError):
                raise
            self._on_drop()
            _LOG.log(
                logging.DEBUG if isinstance(error, ClusterError) else logging.ERROR,
                "event not recorded",
                extra={"why": str(error) or type(error).__name__},
            )
