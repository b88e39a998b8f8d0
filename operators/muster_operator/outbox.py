"""Events, written whenever nothing more pressing waits: they tell people, and nothing depends on them.

At most so many wait; when there is no time for more, the oldest are dropped and counted. One that would come too late
to tell anybody anything is not sent: that a job was admitted, once it has ended (`Letter.instead`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster_operator.kube.api import METADATA_ONLY, Api
from muster_operator.kube.resources import EVENTS

_LOG = logging.getLogger("muster.operator")
_MOST = 20_000
_SENDERS = 4
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Letter:
    """An Event, and the namespace it belongs to."""

    namespace: str
    manifest: dict[str, Any]
    about: str = ""  # what it tells of whom
    instead: str = ""  # what another one was about that is not sent any more if it waits still


class Outbox:
    """`busy` tells whether more pressing writes are on their way."""

    def __init__(self, api: Api, busy: Callable[[], bool], dropped: Callable[[], None]) -> None:
        self._api = api
        self._busy = busy
        self._dropped = dropped
        self._letters: dict[int, Letter] = {}  # oldest first
        self._about: dict[str, int] = {}
        self._added = 0
        self._filled = asyncio.Event()

    def add(self, letter: Letter) -> None:
        """Send it when there is time."""
        if len(self._letters) >= _MOST:
            self._take()
            self._dropped()
        if letter.instead in self._about:
            del self._letters[self._about.pop(letter.instead)]
        self._added += 1
        self._letters[self._added] = letter
        if letter.about:
            self._about[letter.about] = self._added
        self._filled.set()

    def clear(self) -> None:
        """Forget what was not sent: somebody else tells from now on."""
        self._letters.clear()
        self._about.clear()

    def waiting(self) -> list[Letter]:
        """What was not sent yet, oldest first."""
        return list(self._letters.values())

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(_SENDERS):
                senders.create_task(self._send())

    def _take(self) -> Letter:
        number = next(iter(self._letters))
        letter = self._letters.pop(number)
        if self._about.get(letter.about) == number:
            del self._about[letter.about]
        return letter

    async def _send(self) -> None:
        while True:
            while not self._letters:
                self._filled.clear()
                await self._filled.wait()
            while self._busy():  # noqa: ASYNC110 - what it waits for is a rate, not an event
                await asyncio.sleep(_LOOK_S)
            if not self._letters:
                continue
            letter = self._take()
            try:
                body = msgspec.json.encode(letter.manifest)
                await self._api.post(EVENTS.path(letter.namespace), body, accept=METADATA_ONLY)
            except Exception as error:  # whatever is wrong with one, the others are sent
                self._dropped()
                _LOG.log(
                    logging.DEBUG if isinstance(error, ClusterError) else logging.ERROR,
                    "event not recorded",
                    extra={"why": str(error) or type(error).__name__},
                )
