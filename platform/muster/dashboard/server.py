"""The HTTP server of `muster dashboard`: pages for one user's browser on this host, read only.

The address that is printed contains a token. A request with it gets a cookie of this session, which all other requests
must have, and a page that continues without the token, so that it does not stay in the address bar. That page
continues by itself rather than with a redirect: a browser sends no `SameSite=Strict` cookie with the redirect of a link
in another page, such as a terminal in the browser. The hosts of a request may have any port, for `ssh -L`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs

from muster.client import ClusterClient
from muster.dashboard.handler import PageHandler
from muster.dashboard.pages import PAGES
from muster.dashboard.render import Renderer
from muster.dashboard.user_pages import UserPages
from muster.http_server import HOST_NAMES, HTML, LoopbackHandler, LoopbackServer


class DashboardServer(LoopbackServer):
    """`where` and `command` are those of `Renderer`. `serve_forever` answers until `shutdown`; live updates need
    `updates.running()`."""

    def __init__(
        self,
        client: ClusterClient,
        where: str,
        port: int = 0,
        *,
        command: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.renderer = Renderer(PAGES, where, command)
        self.pages = UserPages(client, self.renderer, clock)
        super().__init__(port, _Handler)
        self.updates = self.pages.updates
        self.session = secrets.token_urlsafe(32)
        self._tokens = {secrets.token_urlsafe(32): False}  # whether it is valid once only
        self.cookie = f"muster-dashboard-{self.port}"

    @property
    def url(self) -> str:
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

    def server_close(self) -> None:
        """Also end the analysis of traces."""
        super().server_close()
        self.pages.analyses.close()

    def _url(self, token: str) -> str:
        return f"http://{self.hosts[0]}/?token={token}"


class _Handler(PageHandler, LoopbackHandler):
    server: DashboardServer

    def names_this_server(self, host: str) -> bool:
        """Any port: `ssh -L` may have chosen another one."""
        name, _, port = host.partition(":")
        return name in HOST_NAMES and (not port or port.isdecimal())

    def do_GET(self) -> None:  # noqa: N802
        if self.refuse_other_hosts():
            return None
        query = self.path.partition("?")[2]
        if "token=" in query:
            return self._begin_session(parse_qs(query).get("token", [""])[-1])
        if not self._has_session():
            return self._page(HTTPStatus.FORBIDDEN, "no_session.html")
        return self.serve(self.server.pages)

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
