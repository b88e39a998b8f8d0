"""The daemon's API: HTTP/1.1 and JSON over a Unix socket; no TCP port is opened.

The socket is in a folder that only its user can enter. In addition, connections of other users are refused by the
credentials that the kernel reports.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import socket
import socketserver
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.yaml_input import KINDS
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.local import API_VERSION
from muster.local.control_loop import ControlLoop
from muster.local.environment import process_text_problem
from muster.local.objects import ObjectResult
from muster.local.service import DaemonService
from muster.routes import BAD_REQUEST, bad_parameter, find_route, split_url

_LOG = logging.getLogger("muster.local")
_MAX_REQUEST_BYTES = 16 * 2**20
_MAX_DIGITS = 12  # of Content-Length
_MAX_WATCH_S = 60.0
_HTTP_STATUS: tuple[tuple[type[MusterError], int], ...] = (
    (InvalidSpec, 422), (NotFound, 404), (Conflict, 409), (Refused, 403), (ClusterError, 503), (MusterError, 500),
)  # fmt: skip


class DaemonServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on the socket; one thread per connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, service: DaemonService, loop: ControlLoop) -> None:
        self.service = service
        self.loop = loop
        self._path = path
        path.unlink(missing_ok=True)  # a killed daemon may have left it; this daemon has its lock now
        before = os.umask(0o177)
        try:
            super().__init__(str(path), RequestHandler)
        finally:
            os.umask(before)

    def remove_socket(self) -> None:
        """Delete the socket, unless the home was removed: the daemon of a new home may have one at the same path."""
        if self.loop.owns_home():
            with suppress(OSError):
                self._path.unlink()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether the client is this daemon's user."""
        _, uid, _ = struct.unpack(
            "3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return bool(uid == os.getuid())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logged, unless the client closed the connection or sends nothing."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _LOG.exception("internal error outside of a call")


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: DaemonServer
    timeout = 300

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in http.server
        """Requests are not logged, since they may contain secrets."""

    def _handle(self) -> None:
        requests = self.server.loop.requests
        try:
            body = self._body()
            # The socket of a home with a long path is outside of it, where clients of a new home at that path find it.
            self._check_home()
            requests.begin_request()
        except MusterError as error:
            self._send(*_error_response(error))
            return
        try:
            self._send(*self._dispatch(body))
        finally:
            requests.end_request(may_have_changed=self.command != "GET")

    def _check_home(self) -> None:
        """Raises `ClusterError` ShuttingDown if the home was removed: the loop ends, too."""
        if not self.server.loop.owns_home():
            self.server.loop.wake()
            raise ClusterError("the daemon's home was removed", reason="ShuttingDown")

    def _dispatch(self, body: Any) -> tuple[int, bytes]:
        try:
            try:
                return 200, _encode(route(self.server.service, self.server.loop, self.command, self.path, body))
            finally:  # a job that was accepted would be lost, and an error may have this cause
                self._check_home()
        except MusterError as error:
            return _error_response(error)
        except ValidationError as error:
            return _error_response(_to_invalid_spec(error))
        except Exception as error:
            _LOG.exception("internal error in %s %r", self.command, self.path)
            message = f"internal error: {type(error).__name__}: {error}; see daemon.log"
            return _error_response(MusterError(message))

    def _body(self) -> Any:
        """The JSON body. A request is refused where the server and another reader may see its end in two places: its
        rest would be the next request."""
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) > 1 or "Transfer-Encoding" in self.headers or self.headers.defects:
            self.close_connection = True
            message = "the request must have valid headers, at most one Content-Length and no Transfer-Encoding"
            raise InvalidSpec(message, reason=BAD_REQUEST)
        content_length = lengths[0] if lengths and lengths[0] else "0"
        is_number = content_length.isascii() and content_length.isdecimal() and len(content_length) <= _MAX_DIGITS
        length = int(content_length) if is_number else _MAX_REQUEST_BYTES + 1
        if length > _MAX_REQUEST_BYTES:
            self.close_connection = True
            got = content_length[: 2 * _MAX_DIGITS]
            raise InvalidSpec(f"Content-Length: must be at most {_MAX_REQUEST_BYTES} bytes; got {got!r}")
        if not length:
            return None
        try:
            return json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise InvalidSpec(f"the request must be JSON: {error}", reason=BAD_REQUEST) from error

    def _send(self, code: int, answer: bytes) -> None:
        self.send_response_only(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request: the parameters of its path and query by name, and its body."""

    service: DaemonService
    loop: ControlLoop
    values: Mapping[str, str]
    body: Any

    @property
    def job(self) -> tuple[str, str]:
        """Namespace and name in the path."""
        return self.values["namespace"], self.values["name"]


@dataclass(frozen=True, slots=True)
class _Route:
    """A `muster.routes.Route` of one method; `answer` raises `MusterError`, or pydantic's `ValidationError` for an
    invalid object."""

    method: str
    path: str
    answer: Callable[[_Call], Any]
    parameters: tuple[str, ...] = ()


def route(service: DaemonService, loop: ControlLoop, method: str, target: str, body: Any) -> Any:
    """The response to one request. Raises as `_Route.answer`, `NotFound`, and `InvalidSpec` BadRequest for a parameter
    that the call does not have, so that a misspelled `dryRun` submits nothing."""
    version, _, rest = split_url(target).path.lstrip("/").partition("/")
    if version == "apis" and method == "GET":
        return service.read(target)
    if rest and version != f"v{API_VERSION}":
        raise NotFound(f"the API version must be v{API_VERSION}; got {version}", reason="WrongVersion")
    found, values = find_route((one for one in _ROUTES if one.method == method), target)
    return found.answer(_Call(service, loop, values, body))


def _stop(call: _Call) -> dict[str, Any]:
    call.loop.request_stop(*_parse_stop_request(call.body))
    return {}


def _submit(call: _Call) -> list[TrainingJob]:
    dry_run = call.values.get("dryRun", "false")
    if dry_run not in ("true", "false"):
        raise bad_parameter("dryRun", f"must be true or false; got {dry_run!r}")
    objects, environments = _parse_submission(call.body)
    jobs = [TrainingJob.model_validate(job) for job in objects]
    return call.service.submit(jobs, dry_run == "true", environments)


def _apply(call: _Call) -> list[ObjectResult]:
    objects, environments = _parse_submission(call.body)
    return call.service.apply([_parse_object(item) for item in objects], environments)


def _parse_stop_request(body: Any) -> tuple[str, bool]:
    """(mode, force). Raises `InvalidSpec` for any other value, so that no mistake stops a daemon."""
    fields = _parse_fields(body if body is not None else {})
    mode, force = fields.get("mode", "down"), fields.get("force", False)
    if mode not in ("down", "handover"):
        raise InvalidSpec(f"mode: must be down or handover; got {mode!r}", field="mode")
    if not isinstance(force, bool):
        raise InvalidSpec(f"force: must be true or false; got {force!r}", field="force")
    return mode, force


def _parse_fields(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise InvalidSpec(f"the request must be a JSON object; got {type(body).__name__}", reason=BAD_REQUEST)
    return body


def _watch(call: _Call) -> dict[str, Any]:
    """The job and a mark of its content; with `after`, once the mark is another one, or after `timeout` seconds."""
    until = time.monotonic() + min(_MAX_WATCH_S, _parse_timeout(call.values.get("timeout", "0")))
    while True:
        job = call.service.job(*call.job).model_dump(mode="json", by_alias=True, exclude_none=True)
        mark = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
        remaining_s = until - time.monotonic()
        if mark != call.values.get("after") or remaining_s <= 0 or call.loop.requests.closed:
            return {"job": job, "mark": mark}
        call.service.wait_for_change(min(remaining_s, 1.0))


def _parse_timeout(text: str) -> float:
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0.0 <= timeout_s < math.inf:
        raise bad_parameter("timeout", f"must be a finite number of seconds from 0; got {text!r}")
    return timeout_s


def _parse_submission(body: Any) -> tuple[list[Any], list[dict[str, str] | None]]:
    """Objects, and for each the environment of its submitter. Raises `InvalidSpec` without values, which may be
    secrets."""
    objects = body.get("objects") if isinstance(body, dict) else None
    environments = body.get("environments") if isinstance(body, dict) else None
    if not isinstance(objects, list):
        raise InvalidSpec("objects: must be a list of objects", field="objects")
    if not isinstance(environments, list) or len(environments) != len(objects):
        raise InvalidSpec("environments: must be a list with one entry for each object", field="environments")
    for number, environment in enumerate(environments):
        if environment is not None and (problem := _environment_problem(environment)):
            field = f"environments[{number}]"
            raise InvalidSpec(f"{field}: {problem}", field=field)
    return objects, environments


def _environment_problem(value: Any) -> str | None:
    """Why no process can be started with it; None if one can."""
    if not isinstance(value, dict) or "PATH" not in value:
        return "must be null or an object of strings with PATH"
    for name, text in value.items():
        if not name or "=" in name:
            return f"{name[:60]!r}: must be a name without '='"
        if not isinstance(text, str):
            return f"{name[:60]!r}: must be a string"
        if problem := process_text_problem(f"{name}={text}"):
            return f"{name[:60]!r}: {problem}"
    return None


def _parse_delete_targets(body: Any) -> list[tuple[str, str, str]]:
    """(kind, name, namespace) of each object."""
    try:
        return [(str(item["kind"]), str(item["name"]), str(item["namespace"])) for item in body]
    except (TypeError, KeyError) as error:
        message = "the request must be a list of objects with kind, name and namespace"
        raise InvalidSpec(message) from error


def _parse_object(item: Any) -> TrainingJob | Queue | Flavor:
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidSpec(f"kind: must be TrainingJob, Queue or Flavor; got {kind!r}", field="kind")
    return KINDS[kind].model_validate(item)


_V = f"/v{API_VERSION}"
_JOB = f"{_V}/jobs/{{namespace}}/{{name}}"
_ROUTES = (
    _Route("GET", "/status", lambda call: call.loop.status()),
    _Route("POST", "/stop", _stop),
    _Route("GET", f"{_V}/jobs", lambda call: call.service.jobs(call.values.get("namespace")), ("namespace",)),
    _Route("POST", f"{_V}/jobs", _submit, ("dryRun",)),
    _Route("GET", _JOB, _watch, ("after", "timeout")),
    _Route("POST", _JOB, lambda call: call.service.patch(*call.job, _parse_fields(call.body))),
    _Route("POST", f"{_JOB}/retry", lambda call: call.service.retry(*call.job)),
    _Route("POST", f"{_JOB}/replicas", lambda call: call.service.scale(*call.job, _parse_fields(call.body))),
    _Route("GET", f"{_JOB}/events", lambda call: call.service.events(*call.job)),
    _Route("GET", f"{_JOB}/pods", lambda call: call.service.pods(*call.job)),
    _Route("POST", f"{_V}/apply", _apply),
    _Route("POST", f"{_V}/delete", lambda call: call.service.delete_all(_parse_delete_targets(call.body))),
    _Route("GET", f"{_V}/flavors", lambda call: call.service.flavors()),
    _Route("GET", f"{_V}/snapshot", lambda call: json.loads(call.service.snapshot())),
)


def _encode(answer: Any) -> bytes:
    return json.dumps(_to_jsonable(answer)).encode()


def _to_jsonable(answer: Any) -> Any:
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return [_to_jsonable(item) for item in answer] if isinstance(answer, list) else answer


def _to_invalid_spec(error: ValidationError) -> InvalidSpec:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return InvalidSpec(f"{field}: {first['msg']}", field=field)


def _error_response(error: MusterError) -> tuple[int, bytes]:
    by_type = next(code for kind, code in _HTTP_STATUS if isinstance(error, kind))
    code = 400 if error.reason == BAD_REQUEST else by_type
    message = {"reason": error.reason, "message": str(error), "field": error.field, "job": error.job}
    return code, json.dumps({"error": message | {"type": type(error).__name__}}).encode()
