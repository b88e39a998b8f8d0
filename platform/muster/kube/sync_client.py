"""Requests to the API server; error responses are raised as errors of `muster.errors`."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from muster.errors import ClusterError, Refused, install_extra
from muster.kube.config import ClientConfig, parse_url
from muster.kube.requests import APPLICATION_JSON, MAX_ATTEMPTS, Answer, Request, user_error

if TYPE_CHECKING:
    from websocket import WebSocket

JsonObject = dict[str, Any]

USER_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_TIMEOUT_S = 60.0
_PAGE_SIZE = 500
_CHUNK_BYTES = 65536
_MAX_SHOWN_BYTES = 200  # of an answer in an error
UNREACHABLE_TIMEOUT_S = 120.0
"""How long a watch retries an unreachable API server; an upgrade of a control plane takes about this long."""


class KubeClient:
    """Requests to one API server. Thread-safe: each thread has its own connection."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._thread_local = threading.local()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        """Read an object or a list. Raises as `request` does."""
        return self.request("GET", path, query=query)

    def list_items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[JsonObject]:
        """The objects of a collection, page by page. Raises as `request` does."""
        more = ""
        while True:
            page = self.get(path, {**(query or {}), "limit": str(_PAGE_SIZE)} | ({"continue": more} if more else {}))
            items, metadata = page.get("items", False), page.get("metadata")
            items = [] if items is None else items
            if not isinstance(items, list) or not all(map(_is_object, items)) or not _is_object(metadata):
                raise _invalid_answer("GET", path, json.dumps(page).encode(), "list of objects")
            yield from items
            more = page["metadata"].get("continue", "")
            if not more:
                return

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = APPLICATION_JSON,
        attempts: int = MAX_ATTEMPTS,
    ) -> JsonObject:
        """One request, retried on 429 and 503 up to `attempts`.

        Raises `NotFound`, `Conflict`, `InvalidSpec` and `Refused` (Forbidden) for the server's error responses;
        `ClusterError` if it does not answer, does not authenticate the user, or does not serve Muster's API, and
        `ClusterError` InvalidAnswer if a proxy answers in its place, for example with a page to sign in.
        """
        payload = None if body is None else json.dumps(body).encode()
        request = Request(method, path, payload, query or {}, content_type)
        answer, attempt = self._attempt(request), 1
        while (pause_s := answer.pause_s(attempt, attempts)) is not None:
            time.sleep(pause_s)
            answer, attempt = self._attempt(request), attempt + 1
        if not answer.is_success:
            raise user_error(answer.code, answer.body, method, path)
        try:
            item = decode_json(answer.body) if answer.body else {}
        except ValueError as error:
            raise _invalid_answer(method, path, answer.body) from error
        if not _is_object(item):
            raise _invalid_answer(method, path, answer.body)
        found: JsonObject = item
        return found

    def username(self) -> str:
        """Who the API server says that this client is (SelfSubjectReview, Kubernetes 1.28). Raises as `request`."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        found = self.request("POST", USER_REVIEWS, review)
        try:
            return str(found["status"]["userInfo"]["username"])
        except (KeyError, TypeError) as error:
            raise ClusterError(f"POST {USER_REVIEWS}: the answer has no username", reason="InvalidAnswer") from error

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], idle_timeout_s: float) -> Iterator[Iterator[bytes]]:
        """The lines of a response as they arrive, on a separate connection.

        Raises as `request` does, and `ClusterError` if nothing arrives for `idle_timeout_s` seconds or the connection
        breaks; an incomplete line is then dropped.
        """
        connection = self._connect(idle_timeout_s)
        try:
            answer = self._send(connection, Request("GET", path, query=query))
            if answer.status != 200:
                raise user_error(answer.status, answer.read(), "GET", path)
            yield self._read_lines(answer)
        finally:
            connection.close()

    def open_websocket(self, path: str, subprotocols: Sequence[str]) -> WebSocket:
        """A WebSocket of a path with its query, such as one of `pods/exec`. The caller closes it. Raises as `request`
        does, and `Refused` MissingDependency without the package websocket-client."""
        try:
            from websocket import WebSocketBadStatusException, WebSocketException, create_connection
        except ImportError as error:
            raise Refused(f"{error}; {install_extra('kubernetes')}", reason="MissingDependency") from error
        connection = self._connect(_TIMEOUT_S)
        login = [*self.config.auth_headers().items(), *self.config.impersonation_headers]
        server = urlsplit(self.config.server)
        url = server._replace(scheme="ws" if self.config.tls is None else "wss").geturl().rstrip("/") + path
        try:
            connection.connect()
            opened = create_connection(
                url,
                socket=connection.sock,
                header=[f"{name}: {value}" for name, value in (("User-Agent", "muster"), *login)],
                subprotocols=list(subprotocols),
                suppress_origin=True,
            )
        except WebSocketBadStatusException as error:
            connection.close()
            raise user_error(error.status_code, error.resp_body or b"", "GET", urlsplit(path).path) from error
        except (OSError, http.client.HTTPException, WebSocketException) as error:
            connection.close()
            raise self._unreachable(error) from error
        opened.settimeout(None)
        return opened

    def _read_lines(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """Uses `read1`, because iterating over the response takes a lost connection between two chunks for its end."""
        parts: list[bytes] = []
        try:
            while part := answer.read1(_CHUNK_BYTES):
                *ends, rest = part.split(b"\n")
                for end in ends:
                    yield b"".join((*parts, end, b"\n"))
                    parts.clear()
                parts.append(rest)
            if answer.length:  # bytes of Content-Length that did not arrive
                raise http.client.IncompleteRead(b"", answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        if last := b"".join(parts):
            yield last

    def _attempt(self, request: Request) -> Answer:
        """Only reads reuse a connection: if a reused one breaks, it is unknown whether a write was processed."""
        connection = getattr(self._thread_local, "connection", None) if request.verb == "GET" else None
        if connection is not None:
            try:
                return self._send_and_read(connection, request)
            except ClusterError:
                self._thread_local.connection = None  # the server has closed it
        connection = self._connect(_TIMEOUT_S)
        answer = self._send_and_read(connection, request)
        self._thread_local.connection = connection
        return answer

    def _send_and_read(self, connection: http.client.HTTPConnection, request: Request) -> Answer:
        answer = self._send(connection, request)
        try:
            return Answer(answer.status, answer.read(), answer.headers.get("Retry-After"))
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _send(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        headers = request.headers(self.config.auth_headers(), self.config.impersonation_headers)
        try:
            connection.putrequest(request.verb, urlsplit(self.config.server).path + request.url)
            for name, value in (("User-Agent", "muster"), *headers):
                connection.putheader(name, value.encode())  # a repeated name needs a header line for each value
            if request.body is not None:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        server, tls = urlsplit(self.config.server), self.config.tls
        proxy_url = self.config.proxy_url  # checked when the kubeconfig was read
        proxy = urlsplit(proxy_url) if proxy_url else _proxy_for(server.scheme, server.hostname or "")
        host, port = server.hostname or "", server.port or (80 if tls is None else 443)
        peer = proxy or server
        address = (peer.hostname or "", (peer.port or 3128) if proxy else port)
        connection: http.client.HTTPConnection
        if tls is None:
            connection = http.client.HTTPConnection(*address, timeout=timeout_s)
        else:
            connection = _HTTPSConnectionWithServerName(*address, timeout_s, tls, self.config.server_name)
        if proxy:
            connection.set_tunnel(host, port, _proxy_auth_headers(proxy))
        return connection

    def _unreachable(self, error: Exception) -> ClusterError:
        message = f"{self.config.server} does not answer: {str(error) or type(error).__name__}"
        return ClusterError(message, reason="Unreachable")


class _HTTPSConnectionWithServerName(http.client.HTTPSConnection):
    """Verifies the certificate for `server_name` instead of the host: `tls-server-name` of a kubeconfig."""

    def __init__(self, host: str, port: int, timeout_s: float, tls: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(host, port, timeout=timeout_s, context=tls)
        self._tls = tls
        self._server_name = server_name

    def connect(self) -> None:
        if self._server_name is None:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


def decode_json(text: bytes) -> Any:
    """The value, truncated where it is nested too deeply to parse. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        from muster.api.yaml_input.undecodable import truncate_depth

        return json.loads(truncate_depth(text))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _invalid_answer(method: str, path: str, answer: bytes, expected: str = "object") -> ClusterError:
    start = answer[:_MAX_SHOWN_BYTES].decode(errors="replace")
    message = f"{method} {path}: the answer must be a Kubernetes {expected}; it begins with {start!r}"
    return ClusterError(message, reason="InvalidAnswer")


def _proxy_for(scheme: str, host: str) -> SplitResult | None:
    """The proxy for a host from the environment (HTTPS_PROXY, NO_PROXY), as in other Kubernetes clients; without a
    scheme it is `http`. Raises `ClusterError` InvalidProxy that names the variable, and not its value, which may
    contain a password."""
    text, variable = urllib.request.getproxies().get(scheme), f"{scheme.upper()}_PROXY"
    if not text or urllib.request.proxy_bypass(host):
        return None
    try:
        return parse_url(variable, text if "://" in text else f"http://{text}", ("http",))
    except ValueError as error:
        raise ClusterError(str(error), field=variable, reason="InvalidProxy") from error


def _proxy_auth_headers(proxy: SplitResult) -> dict[str, str]:
    """The user and password in a proxy's URL, as the header that the proxy reads."""
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
