"""The HTTP server of `muster dashboard`: pages for one user's browser on this host, read only.

The address that is printed contains a token. A request with it gets a cookie of this session, which all other requests
must have, and a page that continues without the token, so that it does not stay in the address bar. That page
continues by itself rather than with a redirect: a browser sends no `SameSite=Strict` cookie with the redirect of a link
in another page, such as a terminal in the browser. The hosts of a request may have any port, for `ssh -L`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from muster.client import ClusterClient
from muster.dashboard.live import LiveUpdates, TooManyViewers, Viewer
from muster.dashboard.page import Page, PageRequest, find_page
from muster.dashboard.pages import PAGES
from muster.dashboard.reader import PageReader
from muster.dashboard.render import Renderer
from muster.errors import MusterError
from muster.loopback import HOST_NAMES, HTML, LoopbackHandler, LoopbackServer

_EVENTS = "/events"
_STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}
_KEEPALIVE_S = 15.0
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class DashboardServer(LoopbackServer):
    """`where` names the cluster. `serve_forever` answers until `shutdown`; live updates need `updates.running()`."""

    def __init__(
        self, client: ClusterClient, where: str, port: int = 0, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(port, _Handler)
        self.clock = clock
        """Unix seconds."""
        self._client = client
        self._reader = PageReader(client.read)
        self.pages = PAGES
        self.renderer = Renderer(self.pages, where)
        self.updates = LiveUpdates(lambda target: self.content(target)[2])
        self.session = secrets.token_urlsafe(32)
        self._tokens = {secrets.token_urlsafe(32): False}  # whether it is valid once only
        self.cookie = f"muster-dashboard-{self.port}"

    @property
    def url(self) -> str:
        """The address to open. A client that has it can read what the user may read."""
        return self._url(next(iter(self._tokens)))

    def single_use_url(self) -> str:
        """An address that is valid once, for the command line of a browser, which other users of the host see."""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = True
        return self._url(token)

    def accepts(self, token: str, is_of_this_user: Callable[[], bool]) -> bool:
        """Whether it is a token of this server. One that is valid once is so for this user alone, and then used up:
        another one, who sees it, could be quicker than the browser."""
        for known, once in list(self._tokens.items()):
            if secrets.compare_digest(known.encode(), token.encode()):
                return not once or (is_of_this_user() and self._tokens.pop(known, None) is not None)
        return False

    def content(self, target: str) -> tuple[HTTPStatus, Page | None, str]:
        """What the path and query of a URL show: status, page (None if there is none), HTML of its content."""
        try:
            page, parameters = find_page(self.pages, target)
        except MusterError as error:
            status, content = self.renderer.error_content(error)
            return status, None, content
        request = PageRequest(self._reader.for_one_page(), self._client, parameters, self.clock())
        status, content = self.renderer.content(page, request)
        return status, page, content

    def _url(self, token: str) -> str:
        return f"http://{self.hosts[0]}/?token={token}"


class _Handler(LoopbackHandler):
    server: DashboardServer
    content_security_policy = _CONTENT_SECURITY_POLICY

    def names_this_server(self, host: str) -> bool:
        """Any port: `ssh -L` may have chosen another one."""
        name, _, port = host.partition(":")
        return name in HOST_NAMES and (not port or port.isdecimal())

    def do_GET(self) -> None:  # noqa: N802
        if self.refuse_other_hosts():
            return None
        url = urlsplit(f"http://localhost{self.path}") if self.path.startswith("/") else None
        if url is None:
            return self.answer(HTTPStatus.BAD_REQUEST, b"The path must begin with a slash.\n")
        if "token=" in url.query:
            return self._begin_session(parse_qs(url.query).get("token", [""])[-1])
        if not self._has_session():
            return self._page(HTTPStatus.FORBIDDEN, "no_session.html")
        if url.path.startswith("/static/"):
            return self._static(url.path.removeprefix("/static/"))
        if url.path.startswith(f"{_EVENTS}/"):
            return self._events(self.path.removeprefix(_EVENTS))
        status, page, content = self.server.content(self.path)
        document = self.server.renderer.document(content, page, self.path, self.server.clock())
        return self.answer(status, document.encode(), HTML)

    do_HEAD = do_GET

    def _begin_session(self, token: str) -> None:
        if not self.server.accepts(token, self.is_of_this_user):
            return self._page(HTTPStatus.FORBIDDEN, "no_session.html")
        cookie = f"{self.server.cookie}={self.server.session}; Path=/; HttpOnly; SameSite=Strict"
        return self._page(HTTPStatus.OK, "enter.html", Set_Cookie=cookie)

    def _has_session(self) -> bool:
        """Whether the cookie is there; other servers on this host have cookies of any form beside it."""
        cookies = (part.strip().partition("=") for part in self.headers.get("Cookie", "").split(";"))
        found = next((value for name, _, value in cookies if name == self.server.cookie), "")
        return secrets.compare_digest(found.encode(), self.server.session.encode())

    def _page(self, status: HTTPStatus, template: str, **headers: str) -> None:
        self.answer(status, self.server.renderer.plain(template).encode(), HTML, **headers)

    def _static(self, name: str) -> None:
        if name not in _STATIC:
            return self.answer(HTTPStatus.NOT_FOUND, b"Not found.\n")
        return self.answer(HTTPStatus.OK, _static_file(name), f"{_STATIC[name]}; charset=utf-8")

    def _events(self, target: str) -> None:
        """Server-sent events, each with a page's content as JSON, until the browser goes away or the server ends."""
        self.close_connection = True
        try:
            find_page(self.server.pages, target)
            with self.server.updates.viewer(target) as viewer:
                self.send_head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
                if self.command != "HEAD":
                    self._send_events(viewer)
        except MusterError as error:
            self.answer(HTTPStatus.NOT_FOUND, f"{error}\n".encode())
        except TooManyViewers:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Too many pages are kept current.\n", Retry_After="10")

    def _send_events(self, viewer: Viewer) -> None:
        self.wfile.write(b"retry: 1000\n\n")
        while not viewer.closed:
            content = viewer.wait(_KEEPALIVE_S)
            self.wfile.write(b":\n\n" if content is None else f"data: {json.dumps(content)}\n\n".encode())


@cache
def _static_file(name: str) -> bytes:
    return files("muster.dashboard").joinpath("static", name).read_bytes()
