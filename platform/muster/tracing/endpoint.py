"""What a collector answers over HTTP: how far the job is. The operator asks, since it cannot see into a pod.

Whoever can reach the pod can knock, so little is given and nothing is taken: GET only, one short answer of a few known
numbers, a token that is compared in constant time, bounds on time, connections and sizes. What a rank wrote is not
passed on as it is: only numbers and a word that docs/run-folder.md names.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from muster.beats import FIGURES, PHASES, number
from muster.tracing.sharedfolder import SharedFolder

SHORTEST_TOKEN = 16
LARGEST_FILE_BYTES = 65_536
CONNECTIONS = 8
DEADLINE_S = 10.0
"""For a whole request, however slowly it comes."""
_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: an IP address and a port; port 0 takes any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom the endpoint speaks of."""

    run: SharedFolder
    job_uid: str = ""
    pod: str = ""
    traces: Callable[[], int] = lambda: 0  # how many this pod's collector has collected

    def answer(self, now: float) -> dict[str, Any]:
        """All that is told. `unreadable` names files that are there and cannot be read, with the reason."""
        unreadable: list[str] = []
        beat = document(self.run, "beats/rank-0.json", unreadable)
        latest = document(self.run, "checkpoints/latest", unreadable)
        return {
            "now": now,
            "job_uid": self.job_uid,
            "pod": self.pod,
            "traces": self.traces(),
            "beat": None if beat is None else _beat(beat),
            "checkpoint": None if latest is None else {name: number(latest.get(name)) for name in ("step", "at")},
            "unreadable": unreadable,
        }


class Endpoint:
    """A listener in threads of its own, from `start` to `stop`. A port that is taken is tried for again and again."""

    def __init__(
        self, address: Address, token: str, answer: Callable[[], Mapping[str, Any]], say: Callable[[str], None]
    ) -> None:
        self._address = address
        self._token = token
        self._answer = answer
        self._say = say
        self._stopping = threading.Event()
        self._changing = threading.Lock()  # a server that `stop` sees will serve, else to shut it down would never end
        self._server: _Server | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._thread.start()

    def port(self, patience_s: float) -> int:
        """The port, once it listens; TimeoutError if it does not in time."""
        if not self._listening.wait(patience_s) or self._server is None:
            raise TimeoutError(f"not listening after {patience_s:g} s")
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Close the listener; what is being answered is cut off."""
        with self._changing:
            self._stopping.set()
        if self._server is not None:
            self._server.shutdown()
        self._thread.join(_AGAIN_S)

    def _run(self) -> None:
        said = ""
        while not self._stopping.is_set():
            try:
                server = _Server(self._address, self._token, self._answer)
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"cannot listen on {self._address.host} port {self._address.port}, tries again: {error}")
                self._stopping.wait(_AGAIN_S)
                continue
            with server:
                with self._changing:
                    if self._stopping.is_set():
                        return
                    self._server = server
                self._listening.set()
                server.serve_forever(poll_interval=0.2)
            return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: Address, token: str, answer: Callable[[], Mapping[str, Any]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.token = token.encode()
        self.answer = answer
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)  # without asking a name server who we are
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        cut = threading.Timer(DEADLINE_S, _cut, (request,))
        cut.daemon = True
        cut.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up, or is cut off, is no news."""


def _cut(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0
    server_version, sys_version = "muster-collector", ""

    def do_GET(self) -> None:
        server = cast(_Server, self.server)
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self._send(413, {"error": "a request has no body here"})
        elif self.path == "/healthz":
            self._send(200, {"ok": True})
        elif not self._knows(server.token):
            self._send(401, {"error": "Authorization: Bearer TOKEN is missing or wrong"})
        elif self.path == "/beat":
            self._send(200, server.answer())
        else:
            self._send(404, {"error": "there is /beat and /healthz"})

    def _knows(self, token: bytes) -> bool:
        kind, _, said = self.headers.get("Authorization", "").partition(" ")
        return hmac.compare_digest(said.strip().encode("utf-8", "surrogateescape"), token) and kind == "Bearer"

    def _send(self, code: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer, allow_nan=False).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Not a line a beat."""


def document(run: SharedFolder, name: str, unreadable: list[str]) -> dict[str, Any] | None:
    """A small JSON object; None where there is none. No link is followed, and a FIFO is never waited for."""
    try:
        with run.open(name) as file:
            text = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        unreadable.append(f"{name}: {error.strerror or error}")
        return None
    if len(text) > LARGEST_FILE_BYTES:
        unreadable.append(f"{name}: must have at most {LARGEST_FILE_BYTES} bytes")
        return None
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        if isinstance(content, dict):
            return content
    unreadable.append(f"{name}: must be a JSON object")
    return None


def _beat(said: Mapping[str, Any]) -> dict[str, float | str | None]:
    phase = said.get("phase")
    known: dict[str, float | str | None] = {name: number(said.get(name)) for name in FIGURES}
    return {**known, "phase": phase if isinstance(phase, str) and phase in PHASES else None}


def now_of(subject: Subject) -> Callable[[], Mapping[str, Any]]:
    """The answer of the moment at which it is asked for."""
    return lambda: subject.answer(time.time())
