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
from muster_operator.kube.api import METADATA_ONLY, Api, ApiError
from muster_operator.kube.resources import EVENTS

_LOG = logging.getLogger("muster.operator")
_MOST = 20_000
_STALE_S = 900.0  # of those that are no warnings
_OTHERS_TURN = 4
_SENDERS = 4
_LOOK_S = 0.05
_REST, _LONGEST_REST_S = 9.0, 2.0  # of what sending one took, waiting in line for the API server included


def _now() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Letter:
    """An Event, and the namespace it belongs to."""

    namespace: str
    manifest: dict[str, Any]
    about: str = ""  # what it tells of whom
    instead: str = ""  # what another one was about that is not sent any more if it waits still
    since: float = field(default_factory=_now, compare=False)

    @property
    def warns(self) -> bool:
        """Whether it tells of something that somebody may have to act on."""
        return bool(self.manifest.get("type") == "Warning")


class Outbox:
    """`busy` tells whether more pressing writes are on their way."""

    def __init__(self, api: Api, busy: Callable[[], bool], dropped: Callable[[], None]) -> None:
        self._api = api
        self._busy = busy
        self._dropped = dropped
        self._warnings: OrderedDict[int, Letter] = OrderedDict()  # oldest first
        self._others: OrderedDict[int, Letter] = OrderedDict()
        self._about: dict[str, int] = {}
        self._added = 0
        self._sent = 0
        self._filled = asyncio.Event()

    def add(self, letter: Letter) -> None:
        """Send it when there is time."""
        if letter.instead in self._about:
            number = self._about.pop(letter.instead)
            (self._warnings if number in self._warnings else self._others).pop(number)
        if len(self) >= _MOST:
            self._dropped()
            if not self._others and not letter.warns:
                return
            self._take(self._others or self._warnings)
        self._added += 1
        (self._warnings if letter.warns else self._others)[self._added] = letter
        if letter.about:
            self._about[letter.about] = self._added
        self._filled.set()

    def clear(self) -> None:
        """Forget what was not sent: somebody else leads."""
        for _ in range(len(self)):
            self._dropped()
        self._warnings.clear()
        self._others.clear()
        self._about.clear()

    def waiting(self) -> list[Letter]:
        """What was not sent yet: warnings, then others, oldest first."""
        return [*self._warnings.values(), *self._others.values()]

    def __len__(self) -> int:
        return len(self._warnings) + len(self._others)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(_SENDERS):
                senders.create_task(self._send())

    def _next(self) -> tuple[int, Letter] | None:
        """The next one, with its number; None where what waited was worth nothing any more."""
        while self._others and next(iter(self._others.values())).since < _now() - _STALE_S:
            self._take(self._others)
            self._dropped()
        if not len(self):
            return None
        self._sent += 1
        if self._sent % _OTHERS_TURN == 0:
            return self._take(self._others or self._warnings)
        return self._take(self._warnings or self._others)

    def _take(self, letters: OrderedDict[int, Letter]) -> tuple[int, Letter]:
        number, letter = letters.popitem(last=False)
        if self._about.get(letter.about) == number:
            del self._about[letter.about]
        return number, letter

    def _put_back(self, number: int, letter: Letter) -> None:
        """It was not sent, and is the next one again."""
        letters = self._warnings if letter.warns else self._others
        letters[number] = letter
        letters.move_to_end(number, last=False)
        if letter.about:
            self._about.setdefault(letter.about, number)

    async def _send(self) -> None:
        while True:
            while not len(self):
                self._filled.clear()
                await self._filled.wait()
            while self._busy():  # noqa: ASYNC110 - what it waits for is a rate, not an event
                await asyncio.sleep(_LOOK_S)
            if (following := self._next()) is None:
                continue
            began, rest_s = _now(), 0.0
            try:
                await self._post(following[1])
            except ClusterError as error:  # there was no answer, or we may not write just now
                self._put_back(*following)
                rest_s = _LONGEST_REST_S
                _LOG.debug("event not recorded yet", extra={"why": str(error)})
            await asyncio.sleep(rest_s or min(_LONGEST_REST_S, _REST * (_now() - began)))

    async def _post(self, letter: Letter) -> None:
        """Send it, or drop it if it is refused. Raises ClusterError where nobody knows."""
        try:
            body = msgspec.json.encode(letter.manifest)
            await self._api.post(EVENTS.path(letter.namespace), body, accept=METADATA_ONLY)
        except Exception as error:  # whatever is wrong with one, the others are sent
            if isinstance(error, ClusterError) and not isinstance(error, ApiError):
                raise
            self._dropped()
            _LOG.log(
                logging.DEBUG if isinstance(error, ClusterError) else logging.ERROR,
                "event not recorded",
                extra={"why": str(error) or type(error).__name__},
            )
