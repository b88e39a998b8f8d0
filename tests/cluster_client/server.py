"""An API server in memory, over real HTTP: it keeps objects by path, and fails where a test says so. As a real one it
refuses writes for another version, or for another object of the same name."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from muster.cluster_client.client import KubernetesClusterClient
from muster.kube.config import ClientConfig
from muster.kube.sync_client import KubeClient
from muster.visibility.types import BASE_PATH

Json = dict[str, Any]
Fault = Callable[["Handler"], None]
"""What becomes of a request in place of its answer."""

JOBS = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"
ALL_JOBS = "/apis/muster.dev/v1alpha1/trainingjobs"
QUEUES = "/apis/muster.dev/v1alpha1/queues"
FLAVORS = "/apis/muster.dev/v1alpha1/flavors"
NODES = "/api/v1/nodes"
USER_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_MARKS = ("uid", "resourceVersion")


@dataclass
class Server:
    """Objects by path, what was asked, and the faults to come: (method, pattern of the path, how often, fault)."""

    port: int = 0
    objects: dict[str, Json] = field(default_factory=dict)
    requested: list[tuple[str, str]] = field(default_factory=list)
    headers: list[list[tuple[str, str]]] = field(default_factory=list)
    faults: list[list[Any]] = field(default_factory=list)
    version: int = 0
    user: str | None = None
    """Who sends the requests; None: a server without reviews of them (Kubernetes before 1.28)."""

    def fail(self, method: str, path: str, fault: Fault, times: int = 1) -> None:
        """The next `times` requests of this method, no dry runs, whose path matches end with a fault."""
        self.faults.append([method, re.compile(path), times, fault])

    def put(self, path: str, item: Json) -> Json:
        """Keep a copy of an object as a server does: a test may change it without changing that of the next test."""
        self.version += 1
        uid = self.objects.get(path, item).get("metadata", {}).get("uid") or f"uid-{self.version}"
        item = copy.deepcopy(item)
        item["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.objects[path] = item
        return item

    def fault(self, method: str, path: str) -> Fault | None:
        for entry in self.faults:
            if entry[0] == method and entry[1].fullmatch(path) and entry[2] > 0:
                entry[2] -= 1
                return entry[3]  # type: ignore[no-any-return]
        return None

    def of_collection(self, path: str) -> list[Json]:
        """The objects of a collection, of one namespace or of all."""
        plural = path.rsplit("/", 1)[1]
        everywhere = re.compile(rf"{re.escape(path.rsplit('/', 1)[0])}(/namespaces/[^/]+)?/{plural}/[^/]+")
        return [item for at, item in self.objects.items() if everywhere.fullmatch(at)]

    def connection(self) -> KubeClient:
        """A connection of a client."""
        return KubeClient(
            ClientConfig(server=f"http://127.0.0.1:{self.port}", tls=None, auth_headers=dict, context_name="test")
        )

    def client(self) -> KubernetesClusterClient:
        """A client of the server."""
        return KubernetesClusterClient(self.connection())


class Handler(BaseHTTPRequestHandler):
    """Answers one request of a `Server`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    kept: Server

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):  # the client has closed the connection, or the fault did
            self.close_connection = True

    def _answer(self) -> None:
        at = urlsplit(self.path)
        self.query = parse_qs(at.query)
        self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        dry = "dryRun" in self.query
        self.kept.requested.append((self.command + (" dry" if dry else ""), at.path))
        self.kept.headers.append(list(self.headers.items()))
        fault = None if dry else self.kept.fault(self.command, at.path)
        if fault is not None:
            fault(self)
            return
        code, answer = self.do(at.path, dry)
        self.say(code, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def do(self, path: str, dry: bool) -> tuple[int, Json]:
        """What the request does to the objects, and its answer."""
        if path == USER_REVIEWS:
            if self.kept.user is None:
                return 404, {"kind": "Status", "reason": "NotFound", "message": "404 page not found"}
            return 201, {"kind": "SelfSubjectReview", "status": {"userInfo": {"username": self.kept.user}}}
        if self.command == "POST":
            path += f"/{self.body['metadata']['name']}"
            if path in self.kept.objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": "already exists"}
            return 201, self.body if dry else self.kept.put(path, self.body)
        if path.startswith(BASE_PATH) and path not in self.kept.objects:  # the read API is not installed
            return 404, {"kind": "Status", "reason": "NotFound", "message": "404 page not found"}
        if self.command == "GET" and re.search(r"/[a-z]+s$", path) and path not in self.kept.objects:
            return 200, {"kind": "List", "metadata": {}, "items": self.kept.of_collection(path)}
        if path not in self.kept.objects:
            name = path.rsplit("/", 1)[1]
            return 404, {"kind": "Status", "reason": "NotFound", "message": "not found", "details": {"name": name}}
        there = self.kept.objects[path]
        if self.command == "DELETE":
            return self.delete(path, there, dry)
        if self.command == "PUT":
            if any(
                self.body["metadata"].get(mark, there["metadata"][mark]) != there["metadata"][mark] for mark in _MARKS
            ):
                return _conflict("the object has been modified; please apply your changes to the latest version")
            there = self.body if dry else self.kept.put(path, self.body)
        if self.command == "PATCH" and isinstance(self.body, list):
            changed, wrong = _patched(there, self.body)
            if wrong:
                message = "the server rejected our request due to an error in our request"
                return 422, {"kind": "Status", "reason": "Invalid", "message": message, "details": {}}
            there = changed if dry else self.kept.put(path, changed)
        elif self.command == "PATCH":
            meta = self.body.get("metadata", {})
            if meta.get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
                return 422, _invalid("metadata.uid", "field is immutable")
            spec = {**there.get("spec", {}), **self.body.get("spec", {})}
            changed = {**there, "metadata": {**there["metadata"], **meta}, "spec": spec}
            there = changed if dry else self.kept.put(path, changed)
        return 200, there

    def delete(self, path: str, there: Json, dry: bool) -> tuple[int, Json]:
        """What has finalizers stays and is answered with."""
        uid = there["metadata"]["uid"]
        wanted = (self.body or {}).get("preconditions", {}).get("uid", uid)
        if wanted != uid:
            return _conflict(f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}")
        if there["metadata"].get("finalizers"):
            leaving = {**there, "metadata": {**there["metadata"], "deletionTimestamp": "2026-11-21T10:00:00Z"}}
            return 200, leaving if dry else self.kept.put(path, leaving)
        if not dry:
            del self.kept.objects[path]
        return 200, {"kind": "Status", "metadata": {}, "status": "Success", "details": {"uid": uid}}

    def say(self, code: int, answer: Json) -> None:
        """Answer whole."""
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def hang_up(self) -> None:
        """Close without a word."""
        self.close_connection = True
        self.connection.shutdown(2)


def _conflict(message: str) -> tuple[int, Json]:
    return 409, {"kind": "Status", "reason": "Conflict", "message": message}


def _invalid(field: str, message: str) -> Json:
    return {"kind": "Status", "reason": "Invalid", "details": {"causes": [{"field": field, "message": message}]}}


def _patched(there: Json, steps: list[Json]) -> tuple[Json, bool]:
    """The object after tests and replacements, and whether a test failed."""
    changed = copy.deepcopy(there)
    for step in steps:
        *keys, last = (int(key) if key.isdigit() else key for key in step["path"].split("/")[1:])
        holder: Any = changed
        for key in keys:
            holder = holder[key]
        if step["op"] == "test" and holder[last] != step["value"]:
            return there, True
        if step["op"] == "replace":
            holder[last] = step["value"]
    return changed, False


def answered(handler: Handler) -> None:
    """No fault: it is done and answered."""
    handler.say(*handler.do(urlsplit(handler.path).path, dry=False))


def lost(handler: Handler) -> None:
    """The request never arrives."""
    handler.hang_up()


def unanswered(handler: Handler) -> None:
    """What is asked is done, and the answer is lost."""
    handler.do(urlsplit(handler.path).path, dry=False)
    handler.hang_up()


def unavailable(handler: Handler) -> None:
    """The aggregated API has no endpoint: the operator is down."""
    handler.say(503, {"kind": "Status", "reason": "ServiceUnavailable", "message": "no endpoints available"})


def forbidden(handler: Handler) -> None:
    """Its user may not."""
    handler.say(403, {"kind": "Status", "reason": "Forbidden", "message": "alice may not"})


def chunks(*texts: str, whole: bool = True) -> Fault:
    """A stream in these chunks, and its end unless it is cut."""

    def stream(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for text in texts:
            data = text.encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if whole:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.hang_up()

    return stream


@contextmanager
def serving() -> Iterator[Server]:
    """A server for the length of a test."""
    server = Server()
    handler = type("Bound", (Handler,), {"kept": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
