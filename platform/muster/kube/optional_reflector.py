"""Reflector of a resource whose CRD may be absent, and may be installed or removed at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from muster.kube.async_client import ApiError
from muster.kube.reflector import Reflector, ResourceVersionExpired

_LOG = logging.getLogger("muster.kube")
T = TypeVar("T")
_ABSENT_S = 10.0  # between two looks for a resource that does not exist


class OptionalReflector(Reflector[T]):
    """While the resource does not exist there are no objects of it, and it is looked for every few seconds.
    `on_exists(exists)` is called whenever it was looked for."""

    def __init__(self, *args: Any, on_exists: Callable[[bool], None] = lambda exists: None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._on_exists = on_exists

    async def _list(self) -> None:
        if not await self._exists():
            _LOG.warning("no objects: the CRD is not installed", extra={"resource": self.resource.plural})
            self._handler.on_list(set(), self._version)
            self.synced.set()
            while not await self._exists():
                self._outages.list_completed(self.resource.plural, self._outages.count)
                await self._pause(_ABSENT_S)
        await super()._list()

    async def _watch(self) -> None:
        try:
            await super()._watch()
        except ApiError as error:
            if error.code == 404:
                raise ResourceVersionExpired("the CRD was removed") from error
            raise

    async def _exists(self) -> bool:
        try:
            await self._api.get(self.resource.path(), {"limit": "1"} | self._selector)
        except ApiError as error:
            if error.code != 404:
                raise
            self._on_exists(False)
            return False
        self._on_exists(True)
        return True
