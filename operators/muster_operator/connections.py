"""Limits of the connections of an HTTP server without a login: how many there are, and how long one is idle.

Any pod that reaches the port may open connections and send nothing, or a request byte by byte. Each costs a file
descriptor, of which the operator needs some for the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_CONNECTIONS = 256
IDLE_S = 60.0
"""Prometheus and kubelets ask more often, or open another connection."""


class ConnectionLimit:
    """Closes connections that were idle for `idle_s`: without a whole request since they were opened, or since the last
    answer. Where there are `most`, a new one takes the place of the one that has been idle for the longest; if all of
    them have a request, it is closed."""

    def __init__(self, most: int = MAX_CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self._most = most
        self._idle_s = idle_s
        self._idle: dict[web.RequestHandler, float] = {}  # since when, the longest first
        self._busy: set[web.RequestHandler] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._idle) + len(self._busy)

    async def listen(self, runner: web.AppRunner, host: str | None, port: int) -> None:
        """Serve the runner's application, which has `middleware`. Raises OSError where the address is in use."""
        await _Site(runner, self, host, port).start()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Knows which connections have a request."""
        connection = request.protocol
        if self._idle.pop(connection, None) is None:
            return await handler(request)
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            if connection in self._busy:
                self._busy.remove(connection)
                self._add_idle(connection)

    def on_opened(self, connection: web.RequestHandler) -> None:
        if self.count >= self._most:
            longest = next(iter(self._idle), None)
            if longest is None:
                connection.force_close()
                return
            self._close(longest)
        self._add_idle(connection)

    def on_closed(self, connection: web.RequestHandler) -> None:
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _add_idle(self, connection: web.RequestHandler) -> None:
        self._idle[connection] = asyncio.get_running_loop().time()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        while (found := next(iter(self._idle.items()), None)) is not None:
            connection, since = found
            if since + self._idle_s > loop.time():
                self._timer = loop.call_at(since + self._idle_s, self._close_idle)
                return
            self._close(connection)

    def _close(self, connection: web.RequestHandler) -> None:
        del self._idle[connection]
        connection.force_close()


class _Connection(web.RequestHandler):
    """One connection, which the limit knows."""

    def __init__(self, server: web.Server, limit: ConnectionLimit) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit.on_opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._limit.on_closed(self)
        super().connection_lost(exc)


class _Site(web.BaseSite):
    """As aiohttp's TCPSite, with connections of this module."""

    def __init__(self, runner: web.AppRunner, limit: ConnectionLimit, host: str | None, port: int) -> None:
        super().__init__(runner)
        self._limit, self._host, self._port = limit, host, port

    @property
    def name(self) -> str:
        return f"http://{self._host or '0.0.0.0'}:{self._port}"

    async def start(self) -> None:
        await super().start()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None
        self._server = await loop.create_server(lambda: _Connection(server, self._limit), self._host, self._port)
