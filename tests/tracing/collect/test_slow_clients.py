"""Clients that keep connections to a collector open, and reconnect when closed, do not block others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.tracing.endpoints import ask, listening

from muster.tracing.collect import heartbeat_server


@contextmanager
def idle_connections(port: int, sockets: int, peers: int) -> Iterator[None]:
    """Sockets that send a part of a request and reconnect when closed, from `peers` loopback addresses (0: 127.0.0.1);
    the block begins when each has connected."""
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
    monkeypatch.setattr(heartbeat_server, "REQUEST_TIMEOUT_S", 600.0)  # only the limits on connections apply
    with listening(tmp_path) as port, idle_connections(port, sockets, peers):
        assert [ask(port)[0] for _ in range(5)] == [200] * 5
