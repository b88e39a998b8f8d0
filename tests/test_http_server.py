"""Servers for the browsers of one host: what any program of the host can do to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus

import pytest

from muster.http_server import LOOPBACK_ADDRESS, LoopbackHandler, LoopbackServer

LIMIT = 3
REFUSED = "HTTP/1.1 503 Service Unavailable"


class _Handler(LoopbackHandler):
    def do_GET(self) -> None:  # noqa: N802
        self.answer(HTTPStatus.OK, b"here\n")


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(0, _Handler, max_connections=LIMIT) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connect(server: LoopbackServer, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection((LOOPBACK_ADDRESS, server.port), timeout=30))


def status(connection: socket.socket) -> str:
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(65536).partition(b"\r\n")[0].decode()
    except OSError:
        return REFUSED  # before the request was sent


def test_connections_above_the_limit_are_refused_and_accepted_again_once_others_have_ended(
    server: LoopbackServer,
) -> None:
    with ExitStack() as stack:
        assert [status(connect(server, stack)) for _ in range(LIMIT)] == ["HTTP/1.1 200 OK"] * LIMIT  # kept open
        assert status(connect(server, stack)) == REFUSED
    answer = ""
    while "200" not in answer:  # the server notices that they have ended
        with ExitStack() as stack:
            answer = status(connect(server, stack))
