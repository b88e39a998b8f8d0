"""What a collector answers over HTTP: how far the job is. The operator asks, since it cannot see into a pod.

Any program that reaches the pod may connect, so little is given and nothing is taken: GET only, one short answer of a
few known numbers, requests and answers signed (`muster.heartbeat_auth`), bounds on time, connections and sizes. What a
rank wrote is not passed on as it is: only numbers and a word that docs/run-folder.md names.
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

from muster.heartbeat import NUMERIC_FIELDS, PHASES, finite_number
from muster.heartbeat_auth import SCHEME, SIGNATURE_HEADER, HeartbeatSigner
from muster.tracing.shared_folder import SharedFolder

MIN_TOKEN_LENGTH = 16
MAX_FILE_BYTES = 65_536
MAX_REQUEST_BYTES = 8192
MAX_CONNECTIONS = 256
MAX_CONNECTIONS_PER_PEER = 32
"""Connections without a whole request, at once: in all, and from one address."""
REQUEST_TIMEOUT_S = 3.0
"""For a whole request, however slowly it comes, and its answer."""
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: an IP address and a port; port 0 takes any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HeartbeatSource:
    """Whom the endpoint speaks of."""

    run_folder: SharedFolder
    job_uid: str = ""
    pod: str = ""
    trace_count: Callable[[], int] = lambda: 0  # how many this pod's collector has collected

    def response(self, now: float) -> dict[str, Any]:
        """All that is told. `unreadable` names files that are there and cannot be read, with the reason."""
        unreadable: list[str] = []
        beat = read_json_object(self.run_folder, "heartbeats/rank-0.json", unreadable)
        latest = read_json_object(self.run_folder, "checkpoints/latest", unreadable)
        return {
            "now": now,
            "job_uid": self.job_uid,
            "pod": self.pod,
            "traces": self.trace_count(),
            "heartbeat": None if beat is None else _known_fields(beat),
            "checkpoint": None
            if latest is None
            else {name: finite_number(latest.get(name)) for name in ("step", "at")},
            "unreadable": unreadable,
        }


class HeartbeatServer:
    """A listener in a thread of its own, from `start` to `stop`. A port that is taken is tried for again and again."""

    def __init__(self, address: ListenAddress, token: str, source: HeartbeatSource, log: Callable[[str], None]) -> None:
        self._address = address
        self._source = source
        self._signer = HeartbeatSigner(token, source.job_uid, source.pod)
        self._log = log
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._port = 0
        self._listening = threading.Event()
        self._pending: dict[
            asyncio.StreamWriter, str
        ] = {}  # connections that are not answered yet, oldest first; by whom
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._thread.start()

    def wait_for_port(self, timeout_s: float) -> int:
        """The port, once it listens; TimeoutError if it does not in time."""
        if not self._listening.wait(timeout_s):
            raise TimeoutError(f"not listening after {timeout_s:g} s")
        return self._port

    def stop(self) -> None:
        """Close the listener; what is being answered is cut off."""
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_RETRY_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        said = ""
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
                if str(error) != said:
                    said = str(error)
                    self._log(f"cannot listen on {self._address.host} port {self._address.port}, tries again: {error}")
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
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head.decode("latin-1")))
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # it hung up, was cut off, or took too long
            writer.transport.abort()
        finally:
            self._pending.pop(writer, None)
            writer.close()

    def _admit_connection(self, writer: asyncio.StreamWriter) -> None:
        """Count one more connection; past a bound the oldest is cut off: of the same address, else of the address that
        has most. One that sends its request at once is answered before that."""
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        of_peer = Counter(self._pending.values())
        crowded = peer if of_peer[peer] >= MAX_CONNECTIONS_PER_PEER else None
        if crowded is None and len(self._pending) >= MAX_CONNECTIONS:
            crowded = of_peer.most_common(1)[0][0]
        if crowded is not None:
            oldest = next(one for one, of in self._pending.items() if of == crowded)
            del self._pending[oldest]
            oldest.transport.abort()
        self._pending[writer] = peer

    def _response(self, head: str) -> bytes:
        request, *fields = head.split("\r\n")
        verb, _, rest = request.partition(" ")
        path = rest.partition(" ")[0]
        headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
        signed = headers.get("authorization", "")
        if verb != "GET":
            return _http_response(405, {"error": "must be GET"})
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return _http_response(413, {"error": "must have no body"})
        if path == "/healthz":
            return _http_response(200, {"ok": True})
        if not self._signer.verify_request(path, signed, time.time()):
            return _http_response(
                401, {"error": f"must have Authorization: {SCHEME} with a signature of now and for this pod"}
            )
        if path != "/heartbeat":
            return _http_response(404, {"error": "must be /heartbeat or /healthz"})
        return _http_response(
            200, self._source.response(time.time()), lambda body: self._signer.sign_response(signed, body)
        )


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


def read_json_object(run_folder: SharedFolder, name: str, unreadable: list[str]) -> dict[str, Any] | None:
    """A small JSON object; None where there is none. No link is followed, and a FIFO is never waited for."""
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
    known: dict[str, float | str | None] = {name: finite_number(reported.get(name)) for name in NUMERIC_FIELDS}
    return {**known, "phase": phase if isinstance(phase, str) and phase in PHASES else None}
