"""`python -m muster.dashboard` beside a control plane, and a stand-in for an authenticating proxy in front of it."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.certificates import Authority
from tests.cluster.controlplane.plane import ControlPlane

HOST = "localhost"


@dataclass(frozen=True)
class DashboardProcess:
    """The process; `authority`: the CA of its certificate."""

    port: int
    authority: Path

    def open(self, target: str, token: str | None) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        """The beginning of an answer."""
        tls = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection(HOST, self.port, timeout=60, context=tls)
        connection.request("GET", target, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        return connection, connection.getresponse()

    def get(self, target: str, token: str | None) -> tuple[int, str]:
        """Status and text."""
        connection, answer = self.open(target, token)
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    @contextmanager
    def events(self, target: str, token: str) -> Iterator[Iterator[str]]:
        """The contents that a page gets, as JSON. The iterator ends with the connection."""
        connection, answer = self.open(f"/events{target}", token)
        assert answer.status == 200
        try:
            yield (line.decode() for line in answer if line.startswith(b"data: "))
        finally:
            answer.close()
            connection.close()


@contextmanager
def dashboard_process(plane: ControlPlane, folder: Path) -> Iterator[DashboardProcess]:
    """The process has no kubeconfig. It has to end well at SIGTERM, and must have printed no token."""
    authority = Authority(folder / "ca")
    authority.issue("dashboard", HOST, folder=folder / "tls")
    command = [
        sys.executable, "-m", "muster.dashboard", "--listen=127.0.0.1:0", f"--tls-dir={folder / 'tls'}",
        f"--host={HOST}", "--cluster-name=prod", f"--api-server={plane.server}", f"--api-server-ca={plane.authority}",
    ]  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment | {"HOME": str(folder)})
    assert process.stderr is not None
    try:
        port = next(int(line.split()[-1]) for line in process.stderr if "serving on port" in line)
        yield DashboardProcess(port, authority.file)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class _Proxy(BaseHTTPRequestHandler):
    def __init__(self, dashboard: DashboardProcess, token: str, *args: Any) -> None:
        self._dashboard, self._token = dashboard, token
        super().__init__(*args)

    def do_GET(self) -> None:
        connection, answer = self._dashboard.open(self.path, self._token)
        self.send_response_only(answer.status)
        for name in ("Content-Type", "Content-Security-Policy"):
            self.send_header(name, answer.headers[name])
        self.end_headers()
        try:
            while part := answer.read1(65536):
                self.wfile.write(part)
        except OSError:
            pass  # the browser has left the page
        finally:
            answer.close()
            connection.close()

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def signed_in(dashboard: DashboardProcess, token: str) -> Iterator[str]:
    """The address of a proxy that adds the token of one user."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Proxy, dashboard, token)) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()
