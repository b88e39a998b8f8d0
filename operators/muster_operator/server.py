"""HTTP endpoints of the operator: probes, metrics, queue positions; the snapshot on loopback only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from muster_operator.settings import ListenAddresses


@dataclass(frozen=True, slots=True)
class ServerCallbacks:
    """Sources of the answers. Liveness and readiness errors are "" if there is none."""

    metrics: Callable[[], bytes]  # Prometheus' text format
    liveness_error: Callable[[], str]
    readiness_error: Callable[[], str]
    positions: Callable[[str | None], Iterable[dict[str, Any]]]  # of one namespace, or of all
    snapshot: Callable[[], bytes | None]


class OperatorServer:
    """Two listeners."""

    def __init__(self, answers: ServerCallbacks) -> None:
        self._callbacks = answers
        self._runners: list[web.AppRunner] = []

    async def start(self, addresses: ListenAddresses) -> None:
        """Open both listeners. Raises OSError where an address is in use."""
        await self._listen(addresses.public, self._routes())
        await self._listen(addresses.private, [*self._routes(), web.get("/snapshot", self._snapshot)])

    async def stop(self) -> None:
        """Close both listeners."""
        for runner in self._runners:
            await runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/positions", self._positions),
        ]

    async def _listen(self, address: str, routes: list[web.RouteDef]) -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        host, _, port = address.rpartition(":")
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()

    async def _healthz(self, request: web.Request) -> web.Response:
        error = self._callbacks.liveness_error()
        return web.Response(text=error or "ok", status=503 if error else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        error = self._callbacks.readiness_error()
        return web.Response(text=error or "ok", status=503 if error else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._callbacks.metrics(), headers=headers)

    async def _positions(self, request: web.Request) -> web.Response:
        rows = list(self._callbacks.positions(request.query.get("namespace")))
        return web.Response(body=msgspec.json.encode({"items": rows}), content_type="application/json")

    async def _snapshot(self, request: web.Request) -> web.Response:
        snapshot = self._callbacks.snapshot()
        if snapshot is None:
            return web.Response(
                text="no scheduling cycle completed yet; request the snapshot from the leader", status=404
            )
        return web.Response(body=snapshot, content_type="application/json")
