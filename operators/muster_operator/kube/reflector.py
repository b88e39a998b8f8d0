"""A resource of the API server, kept in memory: list once, then watch, for ever.

A watch goes on from the version it has reached; when the server no longer knows that version (410), and after an outage
(`outages`), everything is listed again. What a list or a watch says goes to a `Sink`; whether that changed anything is
the sink's business.

Anybody may write what is read here, and every replica reads it, after every restart. So nothing in one object ends a
watch or hides another object: what no decoder follows down is read without its depths, what cannot be read is left out,
and an event whose version cannot be told is passed by listing again.
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

from muster.errors import ClusterError
from muster.yaml_input.truncate import decode_truncated
from muster_operator.kube.client import ApiError, ApiServerClient, V1Status
from muster_operator.kube.resources import Resource

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
_LOG = logging.getLogger("muster.operator")
_PAGE_SIZE = 500
_WATCH_TIMEOUT_S = (300, 600)  # each watch asks to be ended after some time in between
_WATCH_IDLE_TIMEOUT_S = 150.0  # bookmarks come about once a minute; a watch that is quieter is taken for dead
_BACKOFF_S = (0.05, 10.0)
_NOT_LISTED = -1
_MIN_WATCH_S = 1.0  # a watch that ends sooner, however it ends, counts as one that failed
_EVENTS_PER_YIELD = 200  # events handled before others get their turn


class ResourceEventHandler(Protocol[T_contra]):
    """Where what is seen goes. Versions are resourceVersions, which grow within one resource."""

    def on_list(self, keys: set[str], version: int) -> None:
        """There are no others as of this version: NAMESPACE/NAME, or NAME where there are no namespaces."""

    def on_upsert(self, item: T_contra) -> None:
        """It was created or changed."""

    def on_delete(self, item: T_contra) -> None:
        """It was deleted; this is its last state."""

    def on_bookmark(self, version: int) -> None:
        """Everything up to this version has been told."""


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
    """The server does not know our version any more: list again."""

    reason = "Expired"


class Reflector(Generic[T]):
    """One resource. `shape` is the msgspec type of one object; fields it does not name are skipped unread."""

    def __init__(
        self,
        api: ApiServerClient,
        resource: Resource,
        object_type: type[T],
        handler: ResourceEventHandler[T],
        page_size: int = _PAGE_SIZE,
    ) -> None:
        """`page`: as many objects are listed at a time, which bounds the memory that they need."""
        self.resource = resource
        self.synced = asyncio.Event()
        self._api = api
        self._handler = handler
        self._limit = str(page_size)
        self._object = msgspec.json.Decoder(object_type)
        event = msgspec.defstruct("Event", [("type", str), ("object", object_type)])
        self._event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)
        self._raw_event = msgspec.json.Decoder(_RawEvent)
        self._page = msgspec.json.Decoder(_Page)
        self._bookmark = msgspec.json.Decoder(_Bookmark)
        self._status = msgspec.json.Decoder(V1Status)
        self._version = 0
        self._outages = api.outages
        self._listed_at = _NOT_LISTED  # how many outages there had been when the newest list began
        self._opened_at = math.inf  # when the present watch was; inf before it is
        self._random = random.Random()

    @property
    def version(self) -> int:
        """The resourceVersion up to which everything was told; 0 before the first list."""
        return self._version

    async def run(self) -> None:
        """List and watch until cancelled. What fails is tried again after a backoff; a version that the server does not
        know any more is followed by a list at once, unless the one before was."""
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
            except Exception as caught:  # a bug that something met: everything else must go on being seen
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
                await self._pause(self._backoff_s(failures - 1))

    async def _pause(self, pause_s: float) -> None:
        """Wait, while the API server cannot be reached only until it can."""
        if self._outages.reachable.is_set():
            await asyncio.sleep(pause_s)
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._outages.reachable.wait()
        except TimeoutError:
            return

    def _backoff_s(self, failures: int) -> float:
        least, most = _BACKOFF_S
        return float(min(most, least * 2.0 ** min(failures, 20)) * self._random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        """All objects, page by page, as of now: without a version the server answers from its store. What one page says
        is handed over before the next one comes: of all objects together there may be more than memory holds."""
        keys: set[str] = set()
        outages = self._outages.list_started(self.resource.plural)
        params = {"limit": self._limit}
        while True:
            try:
                answer = await self._api.get(self.resource.path(), params)
            except ApiError as error:
                if error.code == 410:
                    raise ResourceVersionExpired("the list took too long; its pages are gone") from error
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
            params = {"limit": self._limit, "continue": page.metadata.continue_}
            del answer, page
            await asyncio.sleep(0)
        self._version = int(page.metadata.resource_version)
        self._handler.on_list(keys, self._version)
        self._listed_at = outages
        self._outages.list_completed(self.resource.plural, outages)

    async def _watch(self) -> None:
        """What happens from our version on, until the server ends it. Raises Expired at an outage: see `Outages`."""
        try:
            async with asyncio.timeout(None) as scope:
                with self._outages.cancel_on_outage(scope):
                    await self._read_stream()
        except TimeoutError as error:  # a watch that is too quiet raises ClusterError
            raise ResourceVersionExpired("the API server could not be reached") from error

    async def _read_stream(self) -> None:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(self._random.randint(*_WATCH_TIMEOUT_S)),
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
        """A bookmark, an error, or an object that is not of the shape we know."""
        try:
            event = decode_truncated(self._raw_event.decode, line)
            if event.type == "ERROR":
                status = decode_truncated(self._status.decode, event.object)
                if status.code == 410 or status.reason in ("Expired", "Gone"):
                    raise ResourceVersionExpired(status.message)
                raise ClusterError(f"watch of {self.resource.plural}: {status.message or 'error'}")
            version = int(decode_truncated(self._bookmark.decode, event.object).metadata.resource_version)
            if version == 0:
                raise ValueError("it has no version")
        except ValueError as error:
            raise ResourceVersionExpired(f"an event that cannot be read: {line[:200]!r}") from error
        if event.type == "DELETED":
            raise ResourceVersionExpired(f"what is gone cannot be read: {line[:200]!r}")
        if event.type != "BOOKMARK":
            self._decode(event.object)  # says what is wrong with it
        self._version = max(self._version, version)
        self._handler.on_bookmark(self._version)

    def _decode(self, raw: msgspec.Raw) -> T | None:
        """One object, or None and a line in the log: one broken object must not hide all others."""
        try:
            return decode_truncated(self._object.decode, raw)
        except ValueError as error:
            _LOG.error("object left out", extra={"resource": self.resource.plural, "why": str(error)})
            return None

    def _deliver(self, callback: Callable[[T], None], item: T) -> bool:
        """Hand one over. False, and a line in the log, if the sink cannot take it."""
        try:
            callback(item)
        except Exception:
            name = getattr(getattr(item, "metadata", None), "name", "")
            _LOG.exception("object left out", extra={"resource": self.resource.plural, "object": name})
            return False
        return True


def _object_key(item: Any) -> str:
    meta = item.metadata
    namespace = getattr(meta, "namespace", "")
    return f"{namespace}/{meta.name}" if namespace else str(meta.name)
