"""Servers for the browsers of one host: what any program of the host can do to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus

import pytest

from muster.http_server import LOOPBACK_ADDRESS, LoopbackHandler, LoopbackServer

LIMIT = 3
REFUSED = "HTTP/1.1 503 Service Unavailable"


class _Handler(LoopbackHandler):
    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/slow":
            assert isinstance(self.server, _Server)
            self.server.answering.release()
            self.server.may_answer.wait()
        self.answer(HTTPStatus.OK, b"here\n")


class _Server(LoopbackServer):
    """Answers `/slow` once it may. Its threads may be slow."""

    close_s = 60.0

    def __init__(self) -> None:
        super().__init__(0, _Handler, max_connections=LIMIT)
        self.answering, self.may_answer = threading.Semaphore(0), threading.Event()
        self.waits_again = threading.Semaphore(0)
        self._answered: set[socket.socket] = set()

    def set_waiting(self, connection: socket.socket, waits: bool) -> None:
        """Also tell the test when a connection waits for its next request: only then another one may take its place."""
        super().set_waiting(connection, waits)
        if not waits:
            self._answered.add(connection)
        elif connection in self._answered:
            self._answered.discard(connection)
            self.waits_again.release()


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.may_answer.set()
            server.shutdown()
            thread.join()


def connect(server: LoopbackServer, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection((LOOPBACK_ADDRESS, server.port), timeout=300))


def status(connection: socket.socket) -> str:
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(65536).partition(b"\r\n")[0].decode()
    except OSError:
        return REFUSED  # before the request was sent


def test_connections_above_the_limit_are_refused_and_accepted_again_once_others_have_ended(server: _Server) -> None:
    with ExitStack() as stack:
        busy = [connect(server, stack) for _ in range(LIMIT)]
        for one in busy:
            one.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            server.answering.acquire()
        assert status(connect(server, stack)) == REFUSED
        server.may_answer.set()
        assert [one.recv(65536).partition(b"\r\n")[0].decode() for one in busy] == ["HTTP/1.1 200 OK"] * LIMIT
    answer = ""
    while "200" not in answer:  # the server notices that they have ended
        with ExitStack() as stack:
            answer = status(connect(server, stack))


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_a_whole_request_takes_no_place_of_another(server: _Server, sent: bytes) -> None:
    with ExitStack() as stack:
        slow = [connect(server, stack) for _ in range(2 * LIMIT)]
        for one in slow:
            with suppress(OSError):  # closed for a later one
                one.sendall(sent)
        for _ in range(2 * LIMIT):
            assert status(connect(server, stack)) == "HTTP/1.1 200 OK"
            assert server.waits_again.acquire(timeout=300)
        assert slow[0].recv(1) == b""


def test_a_connection_kept_open_after_a_request_takes_no_place_of_another(server: _Server) -> None:
    with ExitStack() as stack:
        for _ in range(3 * LIMIT):
            assert status(connect(server, stack)) == "HTTP/1.1 200 OK"
            assert server.waits_again.acquire(timeout=300)
