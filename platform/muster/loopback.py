"""HTTP servers for one user's browser on this host: what `muster report --serve` and `muster dashboard` have in common.

Other users of this host, and web pages in the user's browser, can connect to the port too. So each server checks a
secret of its own besides the `Host` header.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from muster.http_server import MAX_CONNECTIONS, HttpHandler, HttpServer

ADDRESS = "127.0.0.1"
HOST_NAMES = (ADDRESS, "localhost")
_CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class LoopbackServer(HttpServer):
    """Listens on a port of the loopback address (0: a free one). Any user of the host can open connections."""

    def __init__(self, port: int, handler: type[LoopbackHandler], max_connections: int = MAX_CONNECTIONS) -> None:
        super().__init__((ADDRESS, port), handler, max_connections)
        self.hosts = tuple(f"{name}:{self.port}" for name in HOST_NAMES)


class LoopbackHandler(HttpHandler):
    """Answers one connection."""

    def names_this_server(self, host: str) -> bool:
        """Whether a Host header is this server's."""
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
