"""An API server in memory that knows tokens, and the dashboard's Service in front of it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.certificates import Authority

from muster.dashboard.pages import PAGES
from muster.dashboard.render import Renderer
from muster.dashboard.service import CertificateFiles, DashboardService
from muster.dashboard.users import TokenUsers
from muster.errors import NotFound
from muster.kube.config import ClientConfig
from muster.visibility.lists import answer
from muster.visibility.requests import parse_request
from muster.visibility.state import ReadState

HOST = "muster-dashboard.muster-system.svc"
_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@dataclass
class TokenApi:
    """`users`: by token, a name and the namespaces whose jobs the user may list. `seen`: tokens and paths of all
    requests."""

    state: ReadState
    users: dict[str, tuple[str, frozenset[str]]]
    seen: list[tuple[str, str]] = field(default_factory=list)
    failure: int = 0

    def answer(self, token: str, path: str) -> tuple[int, dict[str, Any]]:
        self.seen.append((token, path))
        if self.failure:
            return self.failure, _error(self.failure, "the API server has failed")
        if token not in self.users:
            return 401, _error(401, "Unauthorized")
        name, namespaces = self.users[token]
        if path == _REVIEWS:
            return 201, {"kind": "SelfSubjectReview", "status": {"userInfo": {"username": name}}}
        try:
            found = answer(self.state, parse_request(path), namespaces.__contains__)
        except NotFound as error:
            return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": str(error)}
        return 200, found.model_dump(mode="json", by_alias=True, exclude_none=True)


def _error(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": "Unauthorized" if code == 401 else "Failed", "message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, api: TokenApi, *args: Any) -> None:
        self._api = api
        super().__init__(*args)

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        code, body = self._api.answer(token if scheme == "Bearer" else "", self.path)
        data = json.dumps(body).encode()
        self.send_response_only(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""


class _Connection(http.client.HTTPSConnection):
    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, timeout=60)
        self._tls = tls

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=HOST)


@dataclass(frozen=True)
class Answer:
    """An answer of the Service."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Service:
    """The running Service. `authority`: the CA of its certificate."""

    server: DashboardService
    users: TokenUsers
    certificate: CertificateFiles
    authority: Path

    def connect(self) -> http.client.HTTPSConnection:
        """A connection that verifies the certificate for `HOST`."""
        return _Connection(self.server.port, ssl.create_default_context(cafile=str(self.authority)))

    def request(self, target: str, token: str | None = None, *, method: str = "GET", **headers: str) -> Answer:
        """Any request; `Host` is the Service's unless it is given."""
        connection = self.connect()
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        given = {"Host": HOST} | ({} if token is None else {"Authorization": f"Bearer {token}"}) | headers
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        found = connection.getresponse()
        text = found.read().decode() if found.headers["Content-Type"] != "text/event-stream" else ""
        connection.close()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, text)

    @contextmanager
    def events(self, target: str, token: str) -> Iterator[Iterator[str]]:
        """The contents that a page gets. The iterator ends with the connection."""
        connection = self.connect()
        connection.request("GET", f"/events{target}", headers={"Host": HOST, "Authorization": f"Bearer {token}"})
        found = connection.getresponse()
        assert (found.status, found.headers["Content-Type"]) == (200, "text/event-stream")
        lines = (line.decode() for line in found)
        try:
            yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        finally:
            found.close()
            connection.close()


@contextmanager
def service(api: TokenApi, folder: Path, clock: Callable[[], float] | None = None) -> Iterator[Service]:
    """The Service, until the end of the block. `clock` decides which tokens are idle."""
    authority = Authority(folder / "ca")
    authority.issue("dashboard", HOST, folder=folder / "tls")
    fake = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, api))
    config = ClientConfig(f"http://127.0.0.1:{fake.server_port}", None, dict)
    users = TokenUsers(
        config, Renderer(PAGES, "prod", "muster --cluster kubernetes"), *(() if clock is None else (clock,))
    )
    certificate = CertificateFiles(folder / "tls")
    server = DashboardService(("127.0.0.1", 0), frozenset({HOST, "muster.example.com"}), certificate, users)
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in (fake, server)]
    with fake, server:
        for thread in threads:
            thread.start()
        try:
            yield Service(server, users, certificate, authority.file)
        finally:
            users.end()
            for one in (server, fake):
                one.shutdown()
            for thread in threads:
                thread.join()
