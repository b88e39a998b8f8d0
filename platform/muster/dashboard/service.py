"""The HTTP server of the dashboard as a Service of a cluster: pages for all who have a token of the API server.

The server has no rights of its own. Each request has its user's token in the header `Authorization: Bearer`, which an
authenticating proxy in front adds; there are no cookies. It listens with TLS only, so that no token crosses a network
unencrypted, and answers one request for each connection: a proxy that sends requests of several users over one
connection could otherwise be made to confuse their answers.
"""

from __future__ import annotations

import re
import socket
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

from muster.dashboard.handler import PageHandler
from muster.dashboard.render import error_status
from muster.dashboard.users import TokenUsers, TooManyUsers, is_rejected
from muster.errors import MusterError
from muster.http_server import HTML, HttpServer

MAX_CONNECTIONS = 256
_TIMEOUT_S = 20.0
_CERTIFICATE, _KEY = "tls.crt", "tls.key"  # as in a Secret of type kubernetes.io/tls
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_HOST = re.compile(r"([A-Za-z0-9.-]+?)\.?(:[0-9]+)?")
HEALTH = "/healthz"


class CertificateFiles:
    """The certificate and key of a mounted Secret. Raises OSError if they are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: tuple[bytes, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Use other files for new connections; whether there are some. Raises OSError, and the last ones are used."""
        found = tuple((self._folder / name).read_bytes() for name in (_CERTIFICATE, _KEY))
        if found == self._loaded:
            return False
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.load_cert_chain(self._folder / _CERTIFICATE, self._folder / _KEY)
        self.tls, self._loaded = tls, found
        return True


class DashboardService(HttpServer):
    """`hosts`: the names, in lower case, by which clients may address the server. `serve_forever` answers until
    `shutdown`."""

    def __init__(
        self, address: tuple[str, int], hosts: frozenset[str], certificate: CertificateFiles, users: TokenUsers
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler, MAX_CONNECTIONS)
        self.hosts = hosts
        self.users = users
        self._certificate = certificate

    def get_request(self) -> tuple[Any, Any]:
        """A connection, whose TLS handshake is made by the thread that answers."""
        connection, address = super().get_request()
        connection.settimeout(_TIMEOUT_S)
        tls = self._certificate.tls
        return tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def refuse_connection(self, request: Any) -> None:
        """Without an answer, which needs a handshake."""


class _Handler(PageHandler):
    server: DashboardService
    timeout = _TIMEOUT_S

    def names_this_server(self, host: str) -> bool:
        """Any port: that of a proxy or of a forwarded connection may be another one."""
        found = _HOST.fullmatch(host)
        return found is not None and found[1].lower() in self.server.hosts

    def do_GET(self) -> None:  # noqa: N802
        if self.path == HEALTH:  # a kubelet names the pod's address and has no token
            return self.answer(HTTPStatus.OK, b"ok\n")
        if self.refuse_other_hosts():
            return None
        token = self._token()
        if token is None:
            return self._refuse("the request has no token")
        try:
            user, pages = self.server.users.pages(token)
        except TooManyUsers:
            return self.answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Too many users at a time.\n", Retry_After="30")
        except MusterError as error:
            if is_rejected(error):
                return self._refuse("the API server rejected the token: it is invalid or has expired")
            return self.answer(error_status(error), f"{error}\n".encode())
        return self.serve(pages, user)

    do_HEAD = do_GET

    def send_head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        """Whatever follows on the connection, such as the body of this request, is not read."""
        self.close_connection = True
        super().send_head(status, kind, more | {"Connection": "close"})

    def _token(self) -> str | None:
        found = self.headers.get_all("Authorization") or []
        matched = _BEARER.fullmatch(found[0]) if len(found) == 1 else None
        return None if matched is None else matched[1]

    def _refuse(self, why: str) -> None:
        page = self.server.users.renderer.plain("no_token.html", why=why)
        self.answer(HTTPStatus.UNAUTHORIZED, page.encode(), HTML, WWW_Authenticate="Bearer")
