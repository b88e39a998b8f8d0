"""Events, written whenever nothing more pressing waits: they tell people, and nothing depends on them.

At most so many wait; when there is no time for more, the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
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


class Outbox:
    """`busy` tells whether more pressing writes are on their way."""

    def __init__(self, api: Api, busy: Callable[[], bool], dropped: Callable[[], None]) -> None:
        self._api = api
        self._busy = busy
        self._dropped = dropped
        self._letters: deque[Letter] = deque()
        self._filled = asyncio.Event()

    def add(self, letter: Letter) -> None:
        """Send it when there is time."""
        if len(self._letters) >= _MOST:
            self._letters.popleft()
            self._dropped()
        self._letters.append(letter)
        self._filled.set()

    def clear(self) -> None:
        """Forget what was not sent: somebody else tells from now on."""
        self._letters.clear()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(_SENDERS):
                senders.create_task(self._send())

    async def _send(self) -> None:
        while True:
            while not self._letters:
                self._filled.clear()
                await self._filled.wait()
            while self._busy():  # noqa: ASYNC110 - what it waits for is a rate, not an event
                await asyncio.sleep(_LOOK_S)
            if not self._letters:
                continue
            letter = self._letters.popleft()
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
