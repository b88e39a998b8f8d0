"""An HTTP proxy for tests, which answers itself in place of the server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@dataclass
class Proxy:
    """`heads`: request line and headers of each request, those of CONNECT included."""

    port: int = 0
    heads: list[str] = field(default_factory=list)


@contextmanager
def run_proxy() -> Iterator[Proxy]:
    """A proxy for the length of a test."""
    proxy = Proxy()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self._read_head().startswith("CONNECT "):
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._read_head()
            self.wfile.write(_ANSWER)

        def _read_head(self) -> str:
            lines = []
            while line := self.rfile.readline().strip():
                lines.append(line.decode())
            proxy.heads.append("\n".join(lines))
            return proxy.heads[-1]

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
