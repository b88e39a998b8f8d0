"""Lists and watches one resource, as client-go's Reflector.

A watch resumes from the last version; after 410 Gone and after an outage (`outages`) everything is listed again.
Objects go to a ResourceEventHandler, which decides whether they are changes.

Users write these objects, and every replica reads them after each restart, so one object must not end a watch or hide
another: an object nested too deep for the decoder is truncated, one that cannot be read is skipped, and an event
without a readable version causes a new list.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.backoff import backoff_s
from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.requests import V1Status
from muster.kube.resources import Resource

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
_LOG = logging.getLogger("muster.kube")
_PAGE_SIZE = 500
_WATCH_TIMEOUT_S = (300, 600)  # range of the server-side timeout of a watch
_WATCH_IDLE_TIMEOUT_S = (
    150.0  # bookmarks arrive about once a minute; a watch without events for this long counts as broken
)
_PAUSES_S = (0.1, 10.0)  # from the second failure in a row
_NOT_LISTED = -1
_ABSENT_S = 10.0  # between two looks for a resource that does not exist
_MIN_WATCH_S = 1.0  # a shorter watch counts as failed, however it ended
_EVENTS_PER_YIELD = 200  # events handled before the event loop runs other tasks


class ResourceEventHandler(Protocol[T_contra]):
    """Receiver of objects. Versions are resourceVersions, which grow within a resource."""

    def on_list(self, keys: set[str], version: int) -> None:
        """A list at `version` has exactly these keys: NAMESPACE/NAME, or NAME for cluster-scoped objects."""

    def on_upsert(self, item: T_contra) -> None:
        """An object was created or changed."""

    def on_delete(self, item: T_contra) -> None:
        """An object was deleted; `item` is its last state."""

    def on_bookmark(self, version: int) -> None:
        """Everything up to `version` was delivered."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: _Meta


class ResourceVersionExpired(ClusterError):
    """The server no longer has our version: list again."""

    reason = "Expired"


class Reflector(Generic[T]):
    """Reflector of one resource. `object_type`: msgspec type of an object; fields it lacks are skipped."""

    def __init__(
        self,
        api: AsyncKubeClient,
        resource: Resource,
        object_type: type[T],
        handler: ResourceEventHandler[T],
        page_size: int = _PAGE_SIZE,
        label_selector: str = "",
    ) -> None:
        """`page_size`: objects per list request, which bounds memory. `label_selector`: of the objects that are
        delivered; one that ceases to match counts as deleted."""
        self.resource = resource
        self.synced = asyncio.Event()
        self._api = api
        self._handler = handler
        self._limit = str(page_size)
        self._selector = {"labelSelector": label_selector} if label_selector else {}
        self._object = msgspec.json.Decoder(object_type)
        event = msgspec.defstruct("Event", [("type", str), ("object", object_type)])
        self._event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)
        self._raw_event = msgspec.json.Decoder(_RawEvent)
        self._page = msgspec.json.Decoder(_Page)
        self._bookmark = msgspec.json.Decoder(_Bookmark)
        self._status = msgspec.json.Decoder(V1Status)
        self._version = 0
        self._outages = api.outages
        self._listed_at = _NOT_LISTED  # count of outages when the newest list started
        self._opened_at = math.inf  # when the present watch was opened; inf before that
        self._random = random.Random()

    @property
    def version(self) -> int:
        return self._version

    async def run(self) -> None:
        """List and watch until cancelled. Failures are retried with backoff; an expired version is followed by a list
        at once, unless that was the previous failure too."""
        self._listed_at = _NOT_LISTED
        failures = expired = 0
        while True:
            self._opened_at = math.inf
            error: Exception
            try:
                if self._listed_at != self._outages.count:
                    await asyncio.sleep(self._outages.list_delay_s())
                    await self._list()
                    self.synced.set()
                    continue
                await self._watch()
                error = ClusterError("the watch ended at once")
            except ResourceVersionExpired as caught:
                self._listed_at, expired, error = _NOT_LISTED, expired + 1, caught
                _LOG.info("listing again", extra={"resource": self.resource.plural, "why": str(error)})
            except ClusterError as caught:
                error = caught
            except Exception as caught:  # a bug that one object caused: others must still be delivered
                self._listed_at, error = _NOT_LISTED, caught
                _LOG.exception("listing again", extra={"resource": self.resource.plural})
            if time.monotonic() - self._opened_at >= _MIN_WATCH_S and isinstance(error, ClusterError):
                failures = expired = 0
                continue
            if isinstance(error, ResourceVersionExpired) and expired == 1:
                continue
            failures += 1
            if failures in (2, 5) or failures % 20 == 0:  # not every attempt of a long outage
                _LOG.warning("watch failed", extra={"resource": self.resource.plural, "why": str(error)})
            if failures > 1:
                await self._pause(backoff_s(failures - 1, *_PAUSES_S) * self._random.uniform(0.5, 1.0))

    async def _pause(self, pause_s: float) -> None:
        """Sleep; while the API server is unreachable, only until it is reachable."""
        if self._outages.reachable.is_set():
            await asyncio.sleep(pause_s)
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._outages.reachable.wait()
        except TimeoutError:
            return

    async def _list(self) -> None:
        """List all objects, page by page, consistently: without a version the server reads from etcd. Each page is
        delivered before the next is requested, since all objects together may exceed memory."""
        keys: set[str] = set()
        outages = self._outages.list_started(self.resource.plural)
        params = {"limit": self._limit} | self._selector
        while True:
            try:
                answer = await self._api.get(self.resource.path(), params)
            except ApiError as error:
                if error.code == 410:
                    raise ResourceVersionExpired("the list took too long; its continue token expired") from error
                raise
            try:
                page = decode_truncated(self._page.decode, answer)
            except ValueError as error:
                raise ClusterError(f"list of {self.resource.plural}: not a list: {answer[:200]!r}") from error
            for raw in page.items or ():
                item = self._decode(raw)
                if item is not None and self._deliver(self._handler.on_upsert, item):
                    keys.add(_object_key(item))
            if not page.metadata.continue_:
                break
            params = {"limit": self._limit, "continue": page.metadata.continue_} | self._selector
            del answer, page
            await asyncio.sleep(0)
        self._version = int(page.metadata.resource_version)
        self._handler.on_list(keys, self._version)
        self._listed_at = outages
        self._outages.list_completed(self.resource.plural, outages)

    async def _watch(self) -> None:
        """Watch from our version until the server ends it. Raises ResourceVersionExpired at an outage: see
        `Outages`."""
        try:
            async with asyncio.timeout(None) as scope:
                with self._outages.cancel_on_outage(scope):
                    await self._read_stream()
        except TimeoutError as error:  # an idle watch raises ClusterError instead
            raise ResourceVersionExpired("the API server could not be reached") from error

    async def _read_stream(self) -> None:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(self._random.randint(*_WATCH_TIMEOUT_S)),
            **self._selector,
        }
        try:
            async with self._api.stream(self.resource.path(), params, _WATCH_IDLE_TIMEOUT_S) as stream:
                self._opened_at = time.monotonic()
                rest, handled = b"", 0
                async for chunk in stream.iter_any():
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    for line in lines:
                        self._handle(line)
                        handled += 1
                        if handled % _EVENTS_PER_YIELD == 0:
                            await asyncio.sleep(0)
        except ApiError as error:
            if error.code == 410:
                raise ResourceVersionExpired(error.message) from error
            raise

    def _handle(self, line: bytes) -> None:
        try:
            event = decode_truncated(self._event.decode, line)
        except ValueError:
            self._handle_unusual(line)
            return
        kind, item = event.type, event.object
        if kind in ("ADDED", "MODIFIED"):
            self._deliver(self._handler.on_upsert, item)
        elif kind == "DELETED":
            self._deliver(self._handler.on_delete, item)
        else:
            self._handle_unusual(line)
            return
        version = int(item.metadata.resource_version)
        self._version = version
        self._handler.on_bookmark(version)

    def _handle_unusual(self, line: bytes) -> None:
        """Handle a bookmark, an error, or an object that does not match the type."""
        try:
            event = decode_truncated(self._raw_event.decode, line)
            if event.type == "ERROR":
                status = decode_truncated(self._status.decode, event.object)
                if status.code == 410 or status.reason in ("Expired", "Gone"):
                    raise ResourceVersionExpired(status.message)
                raise ClusterError(f"watch of {self.resource.plural}: {status.message or 'error'}")
            version = int(decode_truncated(self._bookmark.decode, event.object).metadata.resource_version)
            if version == 0:
                raise ValueError("no resourceVersion")
        except ValueError as error:
            raise ResourceVersionExpired(f"an event that cannot be read: {line[:200]!r}") from error
        if event.type == "DELETED":
            raise ResourceVersionExpired(f"a deleted object cannot be read: {line[:200]!r}")
        if event.type != "BOOKMARK":
            self._decode(event.object)  # logs what is wrong
        self._version = max(self._version, version)
        self._handler.on_bookmark(self._version)

    def _decode(self, raw: msgspec.Raw) -> T | None:
        """One object, or None with a log line: one bad object must not hide the others."""
        try:
            return decode_truncated(self._object.decode, raw)
        except ValueError as error:
            _LOG.error("object skipped", extra={"resource": self.resource.plural, "why": str(error)})
            return None

    def _deliver(self, callback: Callable[[T], None], item: T) -> bool:
        """Deliver an object. False, with a log line, if the handler fails."""
        try:
            callback(item)
        except Exception:
            name = getattr(getattr(item, "metadata", None), "name", "")
            _LOG.exception("object skipped", extra={"resource": self.resource.plural, "object": name})
            return False
        return True


def _object_key(item: Any) -> str:
    return str(item.metadata.key)


class OptionalReflector(Reflector[T]):
    """Of a resource whose CRD may be absent, and may be installed or removed at any time. While it does not exist there
    are no objects of it, and it is looked for every few seconds.
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
