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

from muster.beats import FIGURES, PHASES, number
from muster.heartbeat_auth import ANSWER_HEADER, SCHEME, Peer
from muster.tracing.sharedfolder import SharedFolder

SHORTEST_TOKEN = 16
LARGEST_FILE_BYTES = 65_536
LARGEST_REQUEST_BYTES = 8192
CONNECTIONS = 256
CONNECTIONS_OF_ONE = 32
"""Connections without a whole request, at once: in all, and from one address."""
DEADLINE_S = 3.0
"""For a whole request, however slowly it comes, and its answer."""
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
    """A listener in a thread of its own, from `start` to `stop`. A port that is taken is tried for again and again."""

    def __init__(self, address: Address, token: str, subject: Subject, say: Callable[[str], None]) -> None:
        self._address = address
        self._subject = subject
        self._peer = Peer(token, subject.job_uid, subject.pod)
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._port = 0
        self._listening = threading.Event()
        self._open: dict[asyncio.StreamWriter, str] = {}  # connections that are not answered yet, oldest first; by whom
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._thread.start()

    def port(self, patience_s: float) -> int:
        """The port, once it listens; TimeoutError if it does not in time."""
        if not self._listening.wait(patience_s):
            raise TimeoutError(f"not listening after {patience_s:g} s")
        return self._port

    def stop(self) -> None:
        """Close the listener; what is being answered is cut off."""
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_AGAIN_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        said = ""
        while not self._stopping.is_set():
            try:
                server = await asyncio.start_server(
                    self._connected, self._address.host, self._address.port, limit=LARGEST_REQUEST_BYTES, backlog=128
                )
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"cannot listen on {self._address.host} port {self._address.port}, tries again: {error}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _AGAIN_S)
                continue
            self._port = int(server.sockets[0].getsockname()[1])
            self._listening.set()
            await self._stopping.wait()
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_way(writer)
        try:
            async with asyncio.timeout(DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head.decode("latin-1")))
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # it hung up, was cut off, or took too long
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _make_way(self, writer: asyncio.StreamWriter) -> None:
        """Count one more connection; past a bound the oldest is cut off: of the same address, else of the address that
        has most. One that sends its request at once is answered before that."""
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        of_peer = Counter(self._open.values())
        crowded = peer if of_peer[peer] >= CONNECTIONS_OF_ONE else None
        if crowded is None and len(self._open) >= CONNECTIONS:
            crowded = of_peer.most_common(1)[0][0]
        if crowded is not None:
            oldest = next(one for one, of in self._open.items() if of == crowded)
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = peer

    def _response(self, head: str) -> bytes:
        request, *fields = head.split("\r\n")
        verb, _, rest = request.partition(" ")
        path = rest.partition(" ")[0]
        headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
        signed = headers.get("authorization", "")
        if verb != "GET":
            return _http(405, {"error": "must be GET"})
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return _http(413, {"error": "must have no body"})
        if path == "/healthz":
            return _http(200, {"ok": True})
        if not self._peer.accepts(path, signed, time.time()):
            return _http(401, {"error": f"must have Authorization: {SCHEME} with a signature of now and for this pod"})
        if path != "/beat":
            return _http(404, {"error": "must be /beat or /healthz"})
        return _http(200, self._subject.answer(time.time()), lambda body: self._peer.answer(signed, body))


def _http(code: int, answer: Mapping[str, Any], sign: Callable[[bytes], str] | None = None) -> bytes:
    body = json.dumps(answer, allow_nan=False).encode()
    fields = [
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *([f"{ANSWER_HEADER}: {sign(body)}"] if sign is not None else ()),
    ]
    return "\r\n".join([*fields, "", ""]).encode() + body


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
