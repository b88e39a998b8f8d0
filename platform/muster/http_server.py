"""A small HTTP server for pages that only read: GET and HEAD, bounded connections, a thread for each.

`LoopbackServer` is for one user's browser on this host (`muster report --serve`, `muster dashboard`). Other users of
the host, and web pages in the user's browser, can connect to its port too: each such server checks a secret of its own.

A request must name the server in its `Host` header, against DNS rebinding, and no response can be framed or read by
other origins. What else a request needs is decided by each server.

A connection without a whole request, such as one whose head comes slowly, or one that is kept open for the next
request, takes no place that another one needs: above the limit the oldest of them is closed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any, ClassVar

TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
MAX_CONNECTIONS = 128
"""Open connections, each with a thread. A browser opens six at most."""
_TIMEOUT_S = 60.0
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LOOPBACK_ADDRESS = "127.0.0.1"
HOST_NAMES = (LOOPBACK_ADDRESS, "localhost")
_CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class HttpServer(ThreadingTCPServer):
    """`serve_forever` answers requests until `shutdown`, on at most `max_connections` connections at a time."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS  # of the kernel, which lets clients above it wait for a second
    close_s = 2.0
    """Within which the thread of a connection that is closed must end; else the new one is refused."""

    def __init__(
        self, address: tuple[str, int], handler: type[HttpHandler], max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._free = threading.BoundedSemaphore(max_connections)
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}  # connections without a whole request, the oldest first
        super().__init__(address, handler)
        self.port: int = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, or refuse what exceeds the limit."""
        if not self._free.acquire(blocking=False) and not (
            self._close_oldest() and self._free.acquire(timeout=self.close_s)
        ):
            with suppress(OSError):
                self.refuse_connection(request)
            return self.shutdown_request(request)
        try:
            self.set_waiting(request, True)
            super().process_request(request, client_address)
        except BaseException:
            self.set_waiting(request, False)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer until the connection ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.set_waiting(request, False)
            self._free.release()

    def set_waiting(self, connection: socket.socket, waits: bool) -> None:
        """Whether a connection waits for a request, until its whole head has been read."""
        with self._lock:
            self._waiting.pop(connection, None)
            if waits:
                self._waiting[connection] = None

    def _close_oldest(self) -> bool:
        """Close the connection that waits the longest for a request; whether there was one."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
            with suppress(OSError):
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread reads the end, also below TLS
        return True

    def refuse_connection(self, request: Any) -> None:
        """Answer one connection too many, without waiting for what it sends."""
        request.sendall(_TOO_MANY)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class HttpHandler(BaseHTTPRequestHandler):
    """Answers one connection. A subclass implements `do_GET`, which calls `refuse_other_hosts` first."""

    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    content_security_policy: ClassVar[str] = "frame-ancestors 'none'"

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self._connections.set_waiting(self.connection, True)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head of a request; whether it is valid."""
        is_valid = super().parse_request()
        self._connections.set_waiting(self.connection, False)
        return is_valid

    @property
    def _connections(self) -> HttpServer:
        assert isinstance(self.server, HttpServer)
        return self.server

    def names_this_server(self, host: str) -> bool:
        """Whether a Host header is this server's."""
        raise NotImplementedError

    def refuse_other_hosts(self) -> bool:
        """Whether the request names another host; then it has been answered."""
        found = self.headers.get_all("Host") or []
        if len(found) == 1 and self.names_this_server(found[0]):
            return False
        self.answer(HTTPStatus.MISDIRECTED_REQUEST, b"The Host header must name this server.\n")
        return True

    def answer(self, status: HTTPStatus, body: bytes, kind: str = TEXT, **headers: str) -> None:
        """Send a whole response; of a HEAD request its headers only."""
        self.send_head(status, kind, {"Content-Length": str(len(body)), **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        """Send the status and the headers, with `_` in names of `more` for `-`."""
        self.send_response_only(status)
        headers = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.content_security_policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",  # the address contains the secret
            "X-Content-Type-Options": "nosniff",
        } | {name.replace("_", "-"): value for name, value in more.items()}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """No log: it would contain the secret."""


class LoopbackServer(HttpServer):
    """Listens on a port of the loopback address (0: a free one). Any user of the host can open connections."""

    def __init__(self, port: int, handler: type[LoopbackHandler], max_connections: int = MAX_CONNECTIONS) -> None:
        super().__init__((LOOPBACK_ADDRESS, port), handler, max_connections)
        self.hosts = tuple(f"{name}:{self.port}" for name in HOST_NAMES)


class LoopbackHandler(HttpHandler):
    """Answers one connection."""

    def names_this_server(self, host: str) -> bool:
        assert isinstance(self.server, LoopbackServer)
        return host in self.server.hosts

    def is_of_this_user(self) -> bool:
        """Whether a process of this process's user has made the request. True where the kernel does not say: not
        Linux."""
        assert isinstance(self.connection, socket.socket)
        user = _client_user(self.connection)
        return user == os.geteuid() if _CONNECTIONS[0].exists() else True


def _client_user(connection: socket.socket) -> int | None:
    """The user id of the other end of a connection from this host; None if the kernel does not list it."""
    client, server = (_kernel_name(address) for address in (connection.getpeername(), connection.getsockname()))
    for file in _CONNECTIONS:
        try:
            lines = file.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, *_, user = line.split(maxsplit=8)[:8]
            if local.endswith(client) and remote.endswith(server):  # in tcp6 with a prefix
                return int(user)
    return None


def _kernel_name(address: tuple[str, int]) -> str:
    """`0100007F:1F90`: the address of 32 bits as the processor reads it."""
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
