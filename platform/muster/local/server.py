"""HTTP/1.1 and JSON over the daemon's Unix socket, and nothing else: no TCP port exists.

The socket lies in a folder that only its user can enter; besides, the kernel tells who is at the other end, and
anyone else is turned away.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, ValidationError

from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.local.service import DaemonService
from muster.local.version import API_VERSION
from muster.spec import Flavor, Queue, TrainingJob
from muster.yaml_input import KINDS

MAX_REQUEST_BYTES = 16 * 2**20
_MAX_WATCH_S = 60.0
_FIRST_REQUEST_TIMEOUT_S = 60.0
_HTTP_STATUS: tuple[tuple[type[MusterError], int], ...] = (
    (InvalidSpec, 422), (NotFound, 404), (Conflict, 409), (Refused, 403), (ClusterError, 503), (MusterError, 500),
)  # fmt: skip


class RequestTracker:
    """What a request needs besides the verbs: who is asked to stop, and what is known of the requests themselves."""

    def __init__(
        self,
        service: DaemonService,
        get_status: Callable[[], dict[str, Any]],
        request_stop: Callable[[str, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service = service
        self.get_status = get_status
        self.request_stop = request_stop  # (mode, force); mode is down or handover
        self.on_change: Callable[[], None] = lambda: None  # a request may have changed something
        self.closed = False
        self.open_requests = 0
        self._any_served = False  # a daemon is started to be asked something
        self._clock = clock
        self._idle_since = clock()
        self.lock = threading.Lock()

    def begin_request(self) -> None:
        """A request begins. Raises `ClusterError` when the daemon is about to go."""
        with self.lock:
            if self.closed:
                raise ClusterError("the daemon is closing", reason="ShuttingDown")
            self.open_requests += 1

    def end_request(self, may_have_changed: bool = False) -> None:
        """A request ends."""
        with self.lock:
            self.open_requests -= 1
            self._idle_since = self._clock()
            first, self._any_served = not self._any_served, True
        if may_have_changed or first:  # the loop may be asleep until a later end than the one that holds now
            self.on_change()

    def close_if_idle(self, idle_s: float) -> bool:
        """Take no more requests, if none is open and none came for `idle_s`. True when closed.

        The first one, for which the daemon was started, is waited for a minute at least, however small `idle_s` is.
        """
        with self.lock:
            if self.open_requests == 0 and self._idle_remaining_s(idle_s) <= 0:
                self.closed = True
            return self.closed

    def idle_remaining_s(self, idle_s: float) -> float:
        """Seconds until `close_if_quiet` may close; not above 0 when it may now, or once the open requests end."""
        with self.lock:
            return self._idle_remaining_s(idle_s)

    def _idle_remaining_s(self, idle_s: float) -> float:
        return (
            self._idle_since + (idle_s if self._any_served else max(idle_s, _FIRST_REQUEST_TIMEOUT_S)) - self._clock()
        )

    def close(self) -> bool:
        """Take no more requests. True once the open ones are answered."""
        with self.lock:
            self.closed = True
            return self.open_requests == 0


class DaemonServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on the socket; a thread a connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, tracker: RequestTracker) -> None:
        self.tracker = tracker
        path.unlink(missing_ok=True)  # left by a daemon that was killed: we hold its lock
        before = os.umask(0o177)
        try:
            super().__init__(str(path), RequestHandler)
        finally:
            os.umask(before)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Only our own user."""
        _, uid, _ = struct.unpack(
            "3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return bool(uid == os.getuid())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: DaemonServer
    timeout = 300

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in http.server
        """Requests are not logged: they may carry what users keep to themselves."""

    def _handle(self) -> None:
        desk = self.server.tracker
        try:
            body = self._body()
            desk.begin_request()
        except MusterError as error:
            self._send(*_error_response(error))
            return
        try:
            self._send(*self._dispatch(desk, body))
        finally:
            desk.end_request(may_have_changed=self.command != "GET")

    def _dispatch(self, tracker: RequestTracker, body: Any) -> tuple[int, bytes]:
        url = urlsplit(self.path)
        steps = [unquote(step) for step in url.path.split("/") if step]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            return 200, _encode(route(tracker, self.command, steps, query, body))
        except MusterError as error:
            return _error_response(error)
        except ValidationError as error:
            return _error_response(_to_invalid_spec(error))
        except Exception as error:
            return _error_response(
                MusterError(f"the daemon failed at this: {type(error).__name__}: {error}; see daemon.log")
            )

    def _body(self) -> Any:
        output = self.headers.get("Content-Length") or "0"
        length = int(output) if output.isdecimal() else MAX_REQUEST_BYTES + 1
        if length > MAX_REQUEST_BYTES:
            self.close_connection = True
            raise InvalidSpec(f"the request has {output} bytes; {MAX_REQUEST_BYTES} are the most")
        if not length:
            return None
        try:
            return json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise InvalidSpec(f"the request is no JSON that can be read: {error}") from error

    def _send(self, code: int, answer: bytes) -> None:
        self.send_response_only(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def route(tracker: RequestTracker, method: str, segments: list[str], query: dict[str, str], body: Any) -> Any:
    """The answer to one request. Raises `MusterError`, or pydantic's for a body that is no valid object."""
    verbs = tracker.service
    match [method, *segments]:
        case ["GET", "status"]:
            return tracker.get_status()
        case ["POST", "stop"]:
            tracker.request_stop(*_parse_stop_request(body))
            return {}
        case [_, version, *_] if version != f"v{API_VERSION}":
            raise NotFound(f"this daemon speaks v{API_VERSION}, not {version}", reason="WrongVersion")
        case ["GET", _, "jobs"]:
            return verbs.jobs(query.get("namespace"))
        case ["POST", _, "jobs"]:
            objects, environments = _parse_submission(body)
            jobs = [TrainingJob.model_validate(job) for job in objects]
            return verbs.submit(jobs, query.get("dryRun") == "true", environments)
        case ["GET", _, "jobs", namespace, name]:
            return _watch(tracker, namespace, name, query)
        case ["POST", _, "jobs", namespace, name]:
            return verbs.patch(namespace, name, body if isinstance(body, dict) else {})
        case ["POST", _, "jobs", namespace, name, "replicas"]:
            return verbs.scale(namespace, name, body if isinstance(body, dict) else {})
        case ["GET", _, "jobs", namespace, name, "events"]:
            return verbs.events(namespace, name)
        case ["GET", _, "jobs", namespace, name, "pods"]:
            return verbs.pods(namespace, name)
        case ["POST", _, "apply"]:
            objects, environments = _parse_submission(body)
            return verbs.apply([_parse_object(item) for item in objects], environments)
        case ["DELETE", _, "objects", kind, namespace, name]:
            return verbs.delete(kind, namespace, name)
        case ["POST", _, "delete"]:
            return verbs.delete_all(_parse_delete_targets(body))
        case ["GET", _, "queues"]:
            return verbs.queues()
        case ["GET", _, "flavors"]:
            return verbs.flavors()
        case ["GET", _, "nodes"]:
            return verbs.nodes()
        case ["GET", _, "snapshot"]:
            return json.loads(verbs.snapshot())
    raise NotFound(f"there is no {method} /{'/'.join(segments)}", reason="UnknownEndpoint")


def _parse_stop_request(body: Any) -> tuple[str, bool]:
    """(mode, force). Raises `InvalidSpec` for any other words: a daemon is not stopped by a mistake."""
    requested = body if body is not None else {}
    if not isinstance(requested, dict):
        raise InvalidSpec(
            f"the request is {type(requested).__name__}; write an object with mode and force", field="mode"
        )
    mode, force = requested.get("mode", "down"), requested.get("force", False)
    if mode not in ("down", "handover"):
        raise InvalidSpec(f"mode: {mode!r} is not known; write down or handover", field="mode")
    if not isinstance(force, bool):
        raise InvalidSpec(f"force: must be true or false; got {force!r}", field="force")
    return mode, force


def _watch(tracker: RequestTracker, namespace: str, name: str, query: dict[str, str]) -> dict[str, Any]:
    """The job and its mark; with `after`, only once it differs from that mark, or after `timeout` seconds."""
    until = time.monotonic() + min(_MAX_WATCH_S, float(query.get("timeout") or 0))
    while True:
        job = tracker.service.job(namespace, name).model_dump(mode="json", by_alias=True, exclude_none=True)
        mark = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
        left = until - time.monotonic()
        if mark != query.get("after") or left <= 0 or tracker.closed:
            return {"job": job, "mark": mark}
        tracker.service.wait_for_change(min(left, 1.0))


def _parse_submission(body: Any) -> tuple[list[Any], list[dict[str, str] | None]]:
    """Objects, and the environments of their submitter that go with them. Raises `InvalidSpec` that shows no value."""
    objects = body.get("objects") if isinstance(body, dict) else None
    environments = body.get("environments") if isinstance(body, dict) else None
    if not isinstance(objects, list):
        raise InvalidSpec("objects: must be a list of objects", field="objects")
    if (
        not isinstance(environments, list)
        or len(environments) != len(objects)
        or not all(of is None or _is_environment(of) for of in environments)
    ):
        message = "environments: must be a list of objects of texts with a PATH, or nulls, one for each of the objects"
        raise InvalidSpec(message, field="environments")
    return objects, environments


def _is_environment(value: Any) -> bool:
    """Whether a process can be given it, and finds programs."""
    return (
        isinstance(value, dict)
        and "PATH" in value
        and all(
            isinstance(text, str) and name and "=" not in name and "\0" not in name + text
            for name, text in value.items()
        )
    )


def _parse_delete_targets(body: Any) -> list[tuple[str, str, str]]:
    """(kind, name, namespace) of every object that is to go."""
    try:
        return [(str(item["kind"]), str(item["name"]), str(item["namespace"])) for item in body]
    except (TypeError, KeyError) as error:
        message = "the request names no objects; write a list of objects with kind, name and namespace"
        raise InvalidSpec(message) from error


def _parse_object(item: Any) -> TrainingJob | Queue | Flavor:
    kind = item.get("kind") if isinstance(item, dict) else None
    if kind not in KINDS:
        raise InvalidSpec(f"kind: {kind!r} is not known; write TrainingJob, Queue or Flavor", field="kind")
    return KINDS[kind].model_validate(item)


def _encode(answer: Any) -> bytes:
    return json.dumps(_to_jsonable(answer)).encode()


def _to_jsonable(answer: Any) -> Any:
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return [_to_jsonable(item) for item in answer] if isinstance(answer, list) else answer


def _to_invalid_spec(error: ValidationError) -> InvalidSpec:
    first = error.errors()[0]
    field = ".".join(str(step) for step in first["loc"])
    return InvalidSpec(f"{field}: {first['msg']}", field=field)


def _error_response(error: MusterError) -> tuple[int, bytes]:
    code = next(code for kind, code in _HTTP_STATUS if isinstance(error, kind))
    message = {"reason": error.reason, "message": str(error), "field": error.field, "job": error.job}
    return code, json.dumps({"error": message | {"type": type(error).__name__}}).encode()
