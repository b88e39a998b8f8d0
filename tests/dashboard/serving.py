"""A dashboard over the read API of a state in memory, and a browser's part of the protocol."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.memory import MemoryClient

from muster.client import ClusterClient
from muster.dashboard.server import DashboardServer
from muster.visibility.lists import answer
from muster.visibility.requests import parse_request
from muster.visibility.state import ReadState


@dataclass
class ReadStateClient(MemoryClient):
    """Answers the read API from `state`, and counts the requests by URL."""

    run_root: Path = Path("/nonexistent")
    state: ReadState | None = None
    urls: list[str] = field(default_factory=list)
    error: Exception | None = None

    def read(self, url: str) -> Any:
        self.urls.append(url)
        if self.error is not None:
            raise self.error
        assert self.state is not None
        found = answer(self.state, parse_request(url), lambda namespace: True)
        return found.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True)
class Response:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    text: str


@contextmanager
def serving(client: ClusterClient, clock: Callable[[], float] = time.time) -> Iterator[DashboardServer]:
    """The server, until the end of the block."""
    with DashboardServer(client, "this host", clock=clock) as server, server.updates.running():
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def request(server: DashboardServer, target: str, *, method: str = "GET", **headers: str) -> Response:
    """Any request, without a session unless `Cookie` is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest(method, target, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    text = answer.read().decode() if found["content-type"] != "text/event-stream" else ""
    connection.close()
    return Response(answer.status, found, text)


def cookie(server: DashboardServer) -> str:
    """The cookie of a session that was begun with the printed address."""
    url = urlsplit(server.url)
    return request(server, f"{url.path}?{url.query}").headers["set-cookie"].partition(";")[0]


def get(server: DashboardServer, target: str) -> Response:
    """A request of a session."""
    return request(server, target, Cookie=cookie(server))


@contextmanager
def events(server: DashboardServer, target: str) -> Iterator[Iterator[str]]:
    """The contents that a page gets, each as it arrives. The iterator ends with the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/events{target}", headers={"Cookie": cookie(server)})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    lines = (line.decode() for line in answer)
    try:
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
    finally:
        answer.close()
        connection.close()
