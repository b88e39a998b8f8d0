"""A small client of the API server: one request per call, bytes in and out; counted, rate-limited and fenced.

It does not depend on object types. Before every write a fence checks whether this operator may
write: a write that waited for the rate limiter while the Lease was lost must not be sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from muster.errors import ClusterError
from muster.kube.config import ClientConfig
from muster.kube.outages import Outages
from muster.kube.requests import APPLICATION_JSON, MERGE_PATCH, Answer, Request, read_status

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""An answer without spec and status: of a write only the new version matters."""

_CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)  # nothing was sent
_AUTH_HEADERS_TTL_S = 10.0  # then a token file or credential plugin is read again


class ApiError(ClusterError):
    """The API server answered with an error. `reason` is that of its Status."""

    reason = "ApiError"

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or code}: {message}" if message else f"{reason} ({code})", reason=reason or None)
        self.code = code
        self.message = message

    @classmethod
    def from_answer(cls, code: int, answer: bytes) -> Self:
        status = read_status(answer)
        return cls(code, status.reason, status.message)


class NoAnswer(ClusterError):
    """A write was sent, and there was no answer: the API server may have executed it, or may do so later."""

    reason = "NoAnswer"


INVALID_REQUEST_CODES = frozenset({400, 403, 404, 413, 422})
"""Codes that mean that the request is invalid. All others may be transient."""

_SERVER_WIDE_CODES = frozenset({401, 429})


def is_server_wide(error: ClusterError) -> bool:
    """Whether requests for other objects would fail as well."""
    if isinstance(error, ApiError):
        return error.code in _SERVER_WIDE_CODES
    return not isinstance(error, NoAnswer)


class Fenced(ClusterError):
    """A write was not started: this operator may not write, or not before everything is listed again."""

    reason = "Fenced"


@dataclass(slots=True)
class ApiRateLimits:
    """Requests in flight, requests per second, and the burst. `timeout_s`: of each request."""

    in_flight: int = 64
    per_s: float = 300.0
    burst: int = 500
    timeout_s: float = 30.0


CallCounter = Callable[[str, str, str], None]
"""Called for each request: verb, resource, code ("error" if there was no answer)."""


@dataclass(slots=True)
class _Write:
    """A write, and whether it has had a connection."""

    call: str
    connected: bool = False


class TokenBucket:
    """Client-side rate limit, as in client-go: `per_s` tokens a second, at most `burst` at once.

    Pure: times are seconds of one monotonic clock, and delays are returned.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s = per_s
        self.burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; seconds to wait for it (0: available now)."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self, now: float) -> None:
        """Return a token that was not used, since its request was cancelled while it waited."""
        self._refill(now)
        self._tokens = min(float(self.burst), self._tokens + 1.0)

    def available(self, now: float) -> float:
        """Tokens left; negative while some are reserved in advance."""
        self._refill(now)
        return self._tokens

    def _refill(self, now: float) -> None:
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now if self._at is None else max(now, self._at)
        self._tokens = min(float(self.burst), self._tokens + elapsed * self.per_s)


class AsyncKubeClient:
    """Requests to one API server; an async context manager.

    `may_write` is called before every write. A write requested before an outage is not started after it; clients may
    share `outages`.
    """

    def __init__(
        self,
        config: ClientConfig,
        limits: ApiRateLimits,
        *,
        may_write: Callable[[], bool] = lambda: True,
        count: CallCounter = lambda verb, resource, code: None,
        outages: Outages | None = None,
    ) -> None:
        self._config = config
        self._auth_headers: Mapping[str, str] = {}
        self._auth_headers_expire = float("-inf")
        self._may_write = may_write
        self._count = count
        self.outages = outages or Outages()
        self._bucket = TokenBucket(limits.per_s, limits.burst)
        self._in_flight = asyncio.Semaphore(limits.in_flight)
        self._timeout_s = limits.timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool. Watches need connections beyond those of the requests in flight, so it has no
        limit."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0, ssl=self._config.tls or True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            headers={"User-Agent": "muster-operator", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            trace_configs=[self._recheck_fence()],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def available_tokens(self) -> float:
        """Requests that could start now; negative while some wait."""
        return self._bucket.available(time.monotonic())

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """GET. Raises ApiError, or ClusterError when there is no answer."""
        return await self._call(Request("GET", path, query=params or {}))

    async def post(
        self, path: str, body: bytes, params: Mapping[str, str] | None = None, accept: str = APPLICATION_JSON
    ) -> bytes:
        """POST; a write unless it is a dry run. Raises as `get` does, Fenced, and NoAnswer."""
        return await self._call(Request("POST", path, body, params or {}, accept=accept))

    async def create_if_absent(self, path: str, manifest: Mapping[str, Any]) -> None:
        """POST an object, unless one of that name exists. Raises as `post` does."""
        try:
            await self.post(path, msgspec.json.encode(manifest), accept=METADATA_ONLY)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def patch(
        self,
        path: str,
        body: bytes,
        params: Mapping[str, str] | None = None,
        accept: str = METADATA_ONLY,
        content_type: str = MERGE_PATCH,
    ) -> bytes:
        """PATCH with a JSON merge patch, or one of `content_type`; a write unless it is a dry run. Raises as `post`
        does."""
        return await self._call(Request("PATCH", path, body, params or {}, content_type, accept))

    async def put(self, path: str, body: bytes, accept: str = APPLICATION_JSON) -> bytes:
        """PUT. Raises as `post` does."""
        return await self._call(Request("PUT", path, body, accept=accept))

    async def delete(self, path: str, body: bytes) -> bytes:
        """DELETE with DeleteOptions. Raises as `post` does."""
        return await self._call(Request("DELETE", path, body, accept=METADATA_ONLY))

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of a watch as it arrives. Raises as `get` does, and ClusterError after `idle_timeout_s` without
        data."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=idle_timeout_s)
        resource, answered = _resource_name(path), False
        try:
            await self._wait_for_token()
            async with self._http().get(
                self._config.server + path,
                params=params,
                headers=self._headers(Request("GET", path)),
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self._config.server_name,
                proxy=self._config.proxy_url,
            ) as response:
                answered = True
                self.outages.record_answer()
                self._count("WATCH", resource, str(response.status))
                if response.status != 200:
                    raise ApiError.from_answer(response.status, await response.read())
                yield response.content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count("WATCH", resource, "error")
            if not answered:
                self._record_outage(error)
            raise ClusterError(f"watch of {resource}: {_error_text(error)}") from error

    # ---- one request

    async def _call(self, request: Request) -> bytes:
        resource, outages, call = _resource_name(request.path), self.outages.count, f"{request.verb} {request.path}"
        for attempt in count(1):
            await self._wait_for_token()
            async with self._in_flight:
                if request.is_write:
                    self._fence(call)
                    if self.outages.count != outages:
                        raise Fenced(f"{call} aborted: decided before the last outage of the API server")
                answer = await self._send(request, call)
            self._count("DRY-RUN" if request.is_dry_run else request.verb, resource, str(answer.code))
            if answer.is_success:
                return answer.body
            pause_s = answer.pause_s(attempt)
            if pause_s is None:
                raise ApiError.from_answer(answer.code, answer.body)
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, request: Request, call: str) -> Answer:
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http().request(
                    request.verb,
                    self._config.server + request.path,
                    data=request.body,
                    params=request.query or None,
                    headers=self._headers(request),
                    allow_redirects=False,
                    server_hostname=self._config.server_name,
                    proxy=self._config.proxy_url,
                    trace_request_ctx=_Write(call) if request.is_write else None,
                ) as response,
            ):
                self.outages.record_answer()
                return Answer(response.status, await response.read(), response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count(request.verb, _resource_name(request.path), "error")
            text = f"{call}: {_error_text(error)}"
            if request.is_write and not isinstance(error, _CONNECT_ERRORS):
                raise NoAnswer(text) from error
            self._record_outage(error)
            raise ClusterError(text) from error

    def _record_outage(self, error: Exception) -> None:
        """Record an outage, unless there was a connection and only the answer timed out."""
        if isinstance(error, aiohttp.ClientError) or not isinstance(error, TimeoutError):
            self.outages.record_unreachable()

    def _fence(self, call: str) -> None:
        if not self._may_write():
            raise Fenced(f"{call} aborted: this operator does not lead, or resources are being listed again")

    def _recheck_fence(self) -> aiohttp.TraceConfig:
        """Check the fence again once connected: connecting takes time, and the process may be frozen meanwhile.

        A write is sent once: aiohttp repeats PUT and DELETE on another connection, and the conflict that the second one
        causes would be taken for the outcome of the first.
        """

        async def refuse_to_repeat(session: object, context: Any, params: object) -> None:
            write: _Write | None = context.trace_request_ctx
            if write is not None and write.connected:
                raise aiohttp.ServerDisconnectedError("the connection was closed before an answer")

        async def record_connection(session: object, context: Any, params: object) -> None:
            write: _Write | None = context.trace_request_ctx
            if write is not None:
                self._fence(write.call)
                write.connected = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(refuse_to_repeat)
        trace.on_connection_create_end.append(record_connection)
        trace.on_connection_reuseconn.append(refuse_to_repeat)
        trace.on_connection_reuseconn.append(record_connection)
        return trace

    async def _wait_for_token(self) -> None:
        wait_s = self._bucket.reserve(time.monotonic())
        if wait_s > 0:
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                self._bucket.give_back(time.monotonic())
                raise

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        now = time.monotonic()
        if now >= self._auth_headers_expire:
            self._auth_headers, self._auth_headers_expire = self._config.auth_headers(), now + _AUTH_HEADERS_TTL_S
        return request.headers(self._auth_headers, self._config.impersonation_headers)

    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the client is not open"
        return self._session


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _resource_name(path: str) -> str:
    """The plural in a path, with the subresource: pods, trainingjobs/status."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join([*parts[:1], *parts[2:]])
