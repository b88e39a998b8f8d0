"""Sockets that hold a collector's endpoint open, and connect again when cut off, keep nobody else from an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.tracing.endpoints import ask, listening

from muster.tracing import heartbeat_server


@contextmanager
def crowd(port: int, sockets: int, peers: int) -> Iterator[None]:
    """So many sockets that send a part of a request and connect again as soon as they are cut off, from several
    addresses of loopback (0: ours); the block begins once each has connected."""
    over, connected = threading.Event(), threading.Semaphore(0)

    def hold(number: int) -> None:
        first = True
        while not over.is_set():
            with suppress(OSError), socket.socket() as one:
                one.settimeout(0.2)
                one.bind((f"127.0.1.{number % peers + 1}" if peers else "127.0.0.1", 0))
                one.connect(("127.0.0.1", port))
                one.sendall(b"GET /heartbeat HTTP/1.1\r\nX: ")
                if first:
                    connected.release()
                    first = False
                while not over.is_set():
                    with suppress(TimeoutError):
                        if not one.recv(1):
                            break

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(sockets)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert connected.acquire(timeout=60)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("sockets", "peers"), [(24, 0), (24, 24), (100, 3), (300, 20)])
def test_idle_connections_do_not_block_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: int, peers: int
) -> None:
    monkeypatch.setattr(heartbeat_server, "REQUEST_TIMEOUT_S", 600.0)  # so that the bounds on connections have to do
    with listening(tmp_path) as port, crowd(port, sockets, peers):
        assert [ask(port)[0] for _ in range(5)] == [200] * 5
