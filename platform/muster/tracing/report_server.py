"""Serves one report and its traces to a browser on this host, so that the page can hand a trace to Perfetto.

Other users of this host, and web pages in the user's browser, can connect to the port too. So every path begins with a
random token; a request must name this server in its `Host` header, against DNS rebinding; and what is served is a list
of files, addressed by number, which are opened without following links. No response can be read by other origins.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer

from muster.tracing.html_report import render_page
from muster.tracing.run_analysis import Report
from muster.tracing.shared_folder import SharedFolder

ADDRESS = "127.0.0.1"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace by its path below a folder; links are followed in the folder's own path only."""

    folder: SharedFolder
    name: str


class ReportServer(ThreadingTCPServer):
    """Listens on a free port of the loopback address; `serve_forever` answers requests until `shutdown`."""

    daemon_threads = True

    def __init__(self, report: Report, perfetto_url: str) -> None:
        self.traces = {f"traces/{i}": file for i, file in enumerate(trace_files(report))}
        self.page = render_page(report, perfetto_url=perfetto_url).encode()
        self.token = secrets.token_urlsafe(32)
        super().__init__((ADDRESS, 0), _Handler)
        self.hosts = tuple(f"{name}:{self.server_address[1]}" for name in (ADDRESS, "localhost"))

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """The address of the page. A client that has it can read the report and its traces."""
        return f"http://{self.hosts[0]}/{self.token}/"


def trace_files(report: Report) -> Sequence[TraceFile]:
    """The report's traces, in its order."""
    folder = Path(report.summary.folder)
    found = []
    for row in report.traces:
        path = Path(row.trace.source).absolute()
        base = folder if folder in path.parents else path.parent
        found.append(TraceFile(SharedFolder(base), str(path.relative_to(base))))
    return found


class _Handler(BaseHTTPRequestHandler):
    """`/TOKEN/` is the page, `/TOKEN/traces/N` the bytes of the report's trace N, compressed if the file is."""

    server: ReportServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        if self.headers.get_all("Host") != [self.headers.get("Host")] or self.headers["Host"] not in self.server.hosts:
            return self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"The Host header must name this server.\n")
        _, _, path = self.path.partition("/")
        token, _, rest = path.partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._answer(HTTPStatus.NOT_FOUND, b"Not found: use the address that muster report printed.\n")
        if rest == "":
            return self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        if (trace := self.server.traces.get(rest)) is not None:
            return self._send_trace(trace)
        return self._answer(HTTPStatus.NOT_FOUND, b"Not found.\n")

    def _send_trace(self, trace: TraceFile) -> None:
        try:
            file = trace.folder.open(trace.name)
        except OSError as error:
            message = f"{trace.name}: {error.strerror}. If it was collected meanwhile, run muster report again.\n"
            return self._answer(HTTPStatus.CONFLICT, message.encode("utf-8", "replace"))
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            self._head(HTTPStatus.OK, "application/octet-stream", size)
            self.close_connection = True  # the file may shrink meanwhile
            with suppress(OSError):  # the browser may go away
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, size: int) -> None:
        self.send_response_only(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(size),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",  # the address contains the token
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """No log: it would contain the token."""
