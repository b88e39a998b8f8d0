"""Serves one report and its traces to a browser on this host, so that the page can hand a trace to Perfetto.

Every path begins with a random token (`muster.http_server` says against whom), and what is served is a list of files,
addressed by number, which are opened without following links.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from muster.http_server import HTML, LoopbackHandler, LoopbackServer
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.page.html_report import render_page
from muster.tracing.shared_folder import SharedFolder


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace by its path below a folder; links are followed in the folder's own path only."""

    folder: SharedFolder
    name: str


class ReportServer(LoopbackServer):
    """Serves one report on a free port."""

    def __init__(self, report: Report, perfetto_url: str) -> None:
        self.traces = {f"traces/{i}": file for i, file in enumerate(trace_files(report))}
        self.page = render_page(report, perfetto_url=perfetto_url).encode()
        self.token = secrets.token_urlsafe(32)
        super().__init__(0, _Handler)

    @property
    def url(self) -> str:
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


class _Handler(LoopbackHandler):
    """`/TOKEN/` is the page, `/TOKEN/traces/N` the bytes of the report's trace N, compressed if the file is."""

    server: ReportServer

    def do_GET(self) -> None:  # noqa: N802
        if self.refuse_other_hosts():
            return None
        _, _, path = self.path.partition("/")
        token, _, rest = path.partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self.answer(HTTPStatus.NOT_FOUND, b"Not found: use the address that muster report printed.\n")
        if rest == "":
            return self.answer(HTTPStatus.OK, self.server.page, HTML)
        if (trace := self.server.traces.get(rest)) is not None:
            return self._send_trace(trace)
        return self.answer(HTTPStatus.NOT_FOUND, b"Not found.\n")

    def _send_trace(self, trace: TraceFile) -> None:
        try:
            file = trace.folder.open(trace.name)
        except OSError as error:
            message = f"{trace.name}: {error.strerror}. If it was collected meanwhile, run muster report again.\n"
            return self.answer(HTTPStatus.CONFLICT, message.encode("utf-8", "replace"))
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            self.send_head(HTTPStatus.OK, "application/octet-stream", {"Content-Length": str(size)})
            self.close_connection = True  # the file may shrink meanwhile
            with suppress(OSError):  # the browser may go away
                shutil.copyfileobj(file, self.wfile, 1 << 20)
