"""A collector's heartbeat server, and requests to it."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.capture.exchange import exchange
from muster.heartbeats.auth import SIGNATURE_HEADER, HeartbeatSigner
from muster.tracing.collect.heartbeat_server import (
    HeartbeatServer,
    HeartbeatSource,
    ListenAddress,
)
from muster.tracing.shared_folder import SharedFolder

TOKEN = "0123456789abcdef-token"


def source(run: SharedFolder) -> HeartbeatSource:
    def capture(body: bytes, now: float) -> dict[str, Any]:
        return exchange(run, body, now, "trainer-0")

    return HeartbeatSource(run, "uid-1", "pod-0", capture=capture)


@contextmanager
def listening(run_dir: Path) -> Iterator[int]:
    one = HeartbeatServer(ListenAddress("127.0.0.1", 0), TOKEN, source(SharedFolder(run_dir)), print)
    one.start()
    try:
        yield one.wait_for_port(60.0)
    finally:
        one.stop()


PEER = HeartbeatSigner(TOKEN, "uid-1", "pod-0")


def signed(peer: HeartbeatSigner = PEER, path: str = "/heartbeat", ahead_s: float = 0.0, body: str = "") -> str:
    return peer.authorization(path, time.time() + ahead_s, secrets.token_hex(16), body.encode())


def ask(
    port: int, path: str = "/heartbeat", authorization: str | None = None, verb: str = "GET", body: str | None = None
) -> Any:
    """Status and body of a response. The request is signed unless `authorization` is given; checks the signature of
    the response."""
    header = signed(path=path, body=body or "") if authorization is None else authorization
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(verb, path, body, {"Authorization": header} if header else {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status == 200 and path == "/heartbeat":
        assert PEER.verify_response(header, text, answer.headers[SIGNATURE_HEADER])
        assert not PEER.verify_response(signed(), text, answer.headers[SIGNATURE_HEADER])
    return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text
