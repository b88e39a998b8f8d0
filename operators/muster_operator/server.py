"""HTTP endpoints of the operator: probes, metrics, queue positions; the snapshot on loopback only.

There is no login, so any pod that reaches the port may ask all the time. What takes long to make is kept for nine times
as long, few answers are sent at a time, and connections have limits: the rest of the event loop is for the Lease and
the scheduling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from muster_operator.connections import ConnectionLimit
from muster_operator.settings import ListenAddresses

T = TypeVar("T")
_KEEP_FACTOR = 9.0
_MAX_OPEN = 16  # answers that are sent at a time
_TIMEOUT_S = 20.0  # for one of them: a client may read slowly


class Kept(Generic[T]):
    """What `make` returned last, made again once that is nine times as old as it took: so at most a tenth of the time
    is for making it, however often it is asked for."""

    def __init__(self, make: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._value: tuple[T] | None = None
        self._until = float("-inf")

    def get(self) -> T:
        """The value. Raises what `make` raises."""
        began = self._clock()
        if self._value is None or began >= self._until:
            self._value = (self._make(),)
            ended = self._clock()
            self._until = ended + _KEEP_FACTOR * (ended - began)
        return self._value[0]


@dataclass(frozen=True, slots=True)
class ServerCallbacks:
    """Sources of the answers. Liveness and readiness errors are "" if there is none."""

    metrics: Callable[[], bytes]  # Prometheus' text format
    liveness_error: Callable[[], str]
    readiness_error: Callable[[], str]
    positions: Callable[[], Iterable[dict[str, Any]]]
    snapshot: Callable[[], bytes | None]


class OperatorServer:
    """Two listeners."""

    def __init__(self, answers: ServerCallbacks, public_limit: ConnectionLimit | None = None) -> None:
        self._callbacks = answers
        self._limits = public_limit or ConnectionLimit(), ConnectionLimit()
        self._runners: list[web.AppRunner] = []
        self._exposition = Kept(answers.metrics)
        self._rows = Kept(lambda: list(answers.positions()))
        self._all_positions = Kept(lambda: _encoded(self._rows.get()))
        self._open = 0  # answers that are being sent

    async def start(self, addresses: ListenAddresses) -> None:
        """Open both listeners. Raises OSError where an address is in use."""
        public, private = self._limits
        await self._listen(addresses.public, self._routes(), public)
        await self._listen(addresses.private, [*self._routes(), web.get("/snapshot", self._snapshot)], private)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics, allow_head=False),
            web.get("/positions", self._positions, allow_head=False),
        ]

    async def _listen(self, address: str, routes: list[web.RouteDef], limit: ConnectionLimit) -> None:
        app = web.Application(middlewares=[limit.middleware])
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        host, _, port = address.rpartition(":")
        await limit.listen(runner, host.strip("[]") or None, int(port))

    async def _healthz(self, request: web.Request) -> web.Response:
        error = self._callbacks.liveness_error()
        return web.Response(text=error or "ok", status=503 if error else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        error = self._callbacks.readiness_error()
        return web.Response(text=error or "ok", status=503 if error else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, self._exposition.get, "text/plain; version=0.0.4; charset=utf-8")

    async def _positions(self, request: web.Request) -> web.StreamResponse:
        def body() -> bytes:
            namespace = request.query.get("namespace")
            if namespace is None:
                return self._all_positions.get()
            return _encoded([row for row in self._rows.get() if row["namespace"] == namespace])

        return await self._send(request, body, "application/json")

    async def _send(self, request: web.Request, body: Callable[[], bytes], content_type: str) -> web.StreamResponse:
        """Send it, unless too many are being sent."""
        if self._open >= _MAX_OPEN:
            return web.Response(text="too many requests", status=503, headers={"Retry-After": "1"})
        self._open += 1
        try:
            data = body()
            response = web.StreamResponse(headers={"Content-Type": content_type, "Content-Length": str(len(data))})
            async with asyncio.timeout(_TIMEOUT_S):
                await response.prepare(request)
                await response.write(data)
                await response.write_eof()
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        finally:
            self._open -= 1

    async def _snapshot(self, request: web.Request) -> web.Response:
        snapshot = self._callbacks.snapshot()
        if snapshot is None:
            return web.Response(
                text="no scheduling cycle completed yet; request the snapshot from the leader", status=404
            )
        return web.Response(body=snapshot, content_type="application/json")


def _encoded(rows: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"items": rows})
