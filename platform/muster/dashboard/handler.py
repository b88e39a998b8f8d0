"""What both servers of the dashboard answer a user with: pages, their style and script, live updates."""

from __future__ import annotations

import json
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from muster.dashboard.live import TooManyViewers, Viewer
from muster.dashboard.user_pages import UserPages
from muster.errors import MusterError
from muster.http_server import HTML, HttpHandler

_EVENTS = "/events"
_STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}
_KEEPALIVE_S = 15.0
_PLAIN_DOCUMENT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


class PageHandler(HttpHandler):
    """A subclass decides whose pages a request may have, and calls `serve`."""

    content_security_policy = (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )

    def serve(self, pages: UserPages, user: str = "") -> None:
        """Answer the request. Pages show the name `user`."""
        if not self.path.startswith("/"):
            return self.answer(HTTPStatus.BAD_REQUEST, b"The path must begin with a slash.\n")
        path = self.path.partition("?")[0]
        if path.startswith("/static/"):
            return self._static(path.removeprefix("/static/"))
        if path.startswith(f"{_EVENTS}/"):
            return self._events(pages, self.path.removeprefix(_EVENTS))
        try:
            plain = pages.plain_document(self.path)
        except MusterError as error:
            status, document = pages.error_document(error, self.path, user)
            return self.answer(status, document.encode(), HTML)
        if plain is not None:
            return self.answer(HTTPStatus.OK, plain, HTML, Content_Security_Policy=_PLAIN_DOCUMENT_POLICY)
        status, document = pages.document(self.path, user)
        return self.answer(status, document.encode(), HTML)

    def _static(self, name: str) -> None:
        if name not in _STATIC:
            return self.answer(HTTPStatus.NOT_FOUND, b"Not found.\n")
        return self.answer(HTTPStatus.OK, _static_file(name), f"{_STATIC[name]}; charset=utf-8")

    def _events(self, pages: UserPages, target: str) -> None:
        """Server-sent events, each with a page's content as JSON, until the browser goes away or the server ends."""
        self.close_connection = True
        try:
            with pages.viewer(target) as viewer:
                # Proxies such as nginx would keep events until their buffer is full.
                headers = {"Connection": "close", "X-Accel-Buffering": "no"}
                self.send_head(HTTPStatus.OK, "text/event-stream", headers)
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
