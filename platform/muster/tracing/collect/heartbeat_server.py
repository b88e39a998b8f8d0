"""The collector's HTTP server, from which the operator polls the job's heartbeat, reads its curve and requests traces.

Any program that reaches the pod can connect. So the server accepts only three small requests, signs and verifies
(`muster.heartbeats.auth`), and limits time, connections and sizes. Of what a rank wrote, a response contains only the
fields that docs/reference/run-folder.md defines.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from muster.cluster import RunTime
from muster.heartbeats.auth import SCHEME, SIGNATURE_HEADER, HeartbeatSigner
from muster.heartbeats.parse import (
    NUMERIC_FIELDS,
    PHASES,
    StepPoint,
    finite_number,
    newest_checkpoint,
    parse_field,
    run_time_fields,
)
from muster.tracing.runs.step_curve import read_step_curve
from muster.tracing.shared_folder import SharedFolder

MIN_TOKEN_LENGTH = 16
MAX_FILE_BYTES = 65_536
MAX_REQUEST_BYTES = 8192
MAX_BODY_BYTES = 65_536
MAX_CONNECTIONS = 256
MAX_CONNECTIONS_PER_PEER = 32
"""Maximum number of simultaneous unanswered connections, in total and per address."""
REQUEST_TIMEOUT_S = 3.0
"""For receiving the complete request and sending the response."""
_RETRY_S = 5.0
_CURVE_AGE_S = 2.0
"""Requests within this time get the same curve, which costs up to 0.1 s of CPU."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: an IP address and a port; port 0 takes any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HeartbeatSource:
    """The data of the responses."""

    run_folder: SharedFolder
    job_uid: str = ""
    pod: str = ""
    trace_count: Callable[[], int] = lambda: 0  # how many this pod's collector has collected
    # into what the time of the pods is divided until then; of the lead pod
    run_time: Callable[[float], RunTime | None] = lambda now: None
    # the answer to a request to profile steps (`muster.capture.exchange`); raises ValueError if it is invalid
    capture: Callable[[bytes, float], dict[str, Any]] | None = None

    def response(self, now: float) -> dict[str, Any]:
        """The body of a response. `unreadable` lists files that exist and cannot be read, with the reason."""
        unreadable: list[str] = []
        heartbeat = read_json_object(self.run_folder, "heartbeats/rank-0.json", unreadable)
        latest = read_newest_checkpoint(self.run_folder, unreadable)
        return {
            "now": now,
            "job_uid": self.job_uid,
            "pod": self.pod,
            "traces": self.trace_count(),
            "run_time": run_time_fields(self.run_time(now)),
            "heartbeat": None if heartbeat is None else _known_fields(heartbeat),
            "checkpoint": None
            if latest is None
            else {name: finite_number(latest.get(name)) for name in ("step", "at", "steps", "loss")},
            "unreadable": unreadable,
        }


class HeartbeatServer:
    """Listens in its own thread from `start` to `stop`. If the port is in use, it retries."""

    def __init__(self, address: ListenAddress, token: str, source: HeartbeatSource, log: Callable[[str], None]) -> None:
        self._address = address
        self._source = source
        self._signer = HeartbeatSigner(token, source.job_uid, source.pod)
        self._log = log
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._port = 0
        self._listening = threading.Event()
        # Connections that are not answered yet, oldest first, with the peer's address.
        self._pending: dict[asyncio.StreamWriter, str] = {}
        self._curve: tuple[float, list[StepPoint]] | None = None  # when it was read
        self._thread = threading.Thread(target=self._run, name="heartbeat-server", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def wait_for_port(self, timeout_s: float) -> int:
        """The port, once the server listens. Raises TimeoutError."""
        if not self._listening.wait(timeout_s):
            raise TimeoutError(f"not listening after {timeout_s:g} s")
        return self._port

    def stop(self) -> None:
        """Close the server and its open connections."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_RETRY_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        last_error = ""
        while not self._stopping.is_set():
            try:
                server = await asyncio.start_server(
                    self._handle_connection,
                    self._address.host,
                    self._address.port,
                    limit=MAX_REQUEST_BYTES,
                    backlog=128,
                )
            except OSError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    self._log(f"cannot listen on {self._address.host} port {self._address.port}, retrying: {error}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _RETRY_S)
                continue
            self._port = int(server.sockets[0].getsockname()[1])
            self._listening.set()
            await self._stopping.wait()
            server.close()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._admit_connection(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = await reader.readexactly(_body_length(head))
                writer.write(self._response(head, body))
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # closed by the peer, evicted, or timed out
            writer.transport.abort()
        finally:
            self._pending.pop(writer, None)
            writer.close()

    def _admit_connection(self, writer: asyncio.StreamWriter) -> None:
        """Register the connection. At the limit per address, the oldest connection of this address is closed; at the
        total limit, the oldest of the address with the most connections. So idle connections cannot block others."""
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        per_peer = Counter(self._pending.values())
        evict_from = peer if per_peer[peer] >= MAX_CONNECTIONS_PER_PEER else None
        if evict_from is None and len(self._pending) >= MAX_CONNECTIONS:
            evict_from = per_peer.most_common(1)[0][0]
        if evict_from is not None:
            oldest = next(pending for pending, address in self._pending.items() if address == evict_from)
            del self._pending[oldest]
            oldest.transport.abort()
        self._pending[writer] = peer

    def _response(self, head: str, body: bytes) -> bytes:
        request = head.split("\r\n", 1)[0]
        verb, _, rest = request.partition(" ")
        path = rest.partition(" ")[0]
        headers = _headers(head)
        authorization = headers.get("authorization", "")
        if verb != ("POST" if path == "/capture" else "GET"):
            return _http_response(405, {"error": "method must be GET, or POST for /capture"})
        if "transfer-encoding" in headers or headers.get("content-length", "0") != str(len(body)):
            return _http_response(413, {"error": f"body must have a length of at most {MAX_BODY_BYTES} bytes"})
        if body and verb == "GET":
            return _http_response(413, {"error": "request must have no body"})
        if path == "/healthz":
            return _http_response(200, {"ok": True})
        now = time.time()
        if not self._signer.verify_request(path, authorization, now, body):
            return _http_response(
                401, {"error": f"Authorization must be {SCHEME} with a current signature for this pod and path"}
            )

        def sign(content: bytes) -> str:
            return self._signer.sign_response(authorization, content)

        if path == "/heartbeat":
            return _http_response(200, self._source.response(now), sign)
        identity = {"now": now, "job_uid": self._source.job_uid, "pod": self._source.pod}
        try:
            if path == "/curve":
                return _http_response(200, {**identity, "points": self._read_curve()}, sign)
            if path == "/capture" and self._source.capture is not None:
                return _http_response(200, {**identity, **self._source.capture(body, now)}, sign)
        except (OSError, ValueError) as error:
            return _http_response(422, {"error": str(error)[:500]}, sign)
        return _http_response(404, {"error": "path must be /heartbeat, /curve, /capture or /healthz"})

    def _read_curve(self) -> list[StepPoint]:
        if self._curve is None or time.monotonic() >= self._curve[0] + _CURVE_AGE_S:
            self._curve = time.monotonic(), read_step_curve(self._source.run_folder)
        return self._curve[1]


def _headers(head: str) -> dict[str, str]:
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _body_length(head: str) -> int:
    """Bytes to read after the header; 0 for a length that is not accepted, which `_response` refuses."""
    length = _headers(head).get("content-length", "0")
    is_valid = length.isascii() and length.isdecimal() and len(length) <= 8 and int(length) <= MAX_BODY_BYTES
    return int(length) if is_valid else 0


def _http_response(code: int, content: Mapping[str, Any], sign: Callable[[bytes], str] | None = None) -> bytes:
    body = json.dumps(content, allow_nan=False).encode()
    fields = [
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *([f"{SIGNATURE_HEADER}: {sign(body)}"] if sign is not None else ()),
    ]
    return "\r\n".join([*fields, "", ""]).encode() + body


def read_newest_checkpoint(run_folder: SharedFolder, unreadable: list[str]) -> Mapping[str, Any] | None:
    """The newest checkpoint of a run; None without one. `checkpoints/latest` may be another program's (DeepSpeed's is
    a line of text): it is unreadable only if the launcher found none."""
    announced_errors: list[str] = []
    announced = read_json_object(run_folder, "checkpoints/latest", announced_errors)
    watched = read_json_object(run_folder, "checkpoint.json", unreadable)
    if watched is None:
        unreadable += announced_errors
    return newest_checkpoint(announced, watched)


def read_json_object(run_folder: SharedFolder, name: str, unreadable: list[str]) -> dict[str, Any] | None:
    """A JSON object of at most `MAX_FILE_BYTES`; None if missing or unreadable (then added to `unreadable`).

    Symbolic links are not followed, and opening a FIFO does not block.
    """
    try:
        with run_folder.open(name) as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        unreadable.append(f"{name}: {error.strerror or error}")
        return None
    if len(text) > MAX_FILE_BYTES:
        unreadable.append(f"{name}: must have at most {MAX_FILE_BYTES} bytes")
        return None
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        if isinstance(content, dict):
            return content
    unreadable.append(f"{name}: must be a JSON object")
    return None


def _known_fields(reported: Mapping[str, Any]) -> dict[str, float | str | None]:
    phase = reported.get("phase")
    known: dict[str, float | str | None] = {name: parse_field(name, reported.get(name)) for name in NUMERIC_FIELDS}
    return {**known, "phase": phase if isinstance(phase, str) and phase in PHASES else None}
