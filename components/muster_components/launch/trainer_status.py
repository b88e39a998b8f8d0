"""The endpoint for training status of Kubeflow (KEP-2779), on loopback, for programs that report to a TrainJob.

`KUBEFLOW_TRAINER_SERVER_URL`, `_SERVER_TOKEN` (the path of a file) and `_SERVER_CA_CERT` (empty: the clients take plain
HTTP) are set for the ranks, unless the pod has them. What is posted becomes a report of the pod's first rank
(`muster_components.trainer.reports`). Any user of the host reaches the port, so a request needs the token.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

URL_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # the name of a variable
CA_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
MAX_BODY_BYTES: Final = 65_536
REQUEST_TIMEOUT_S: Final = 5.0
MAX_CONNECTIONS: Final = 32
_STEP_NAMES: Final = ("current_step", "currentStep", "global_step", "step")
_STEPS_NAMES: Final = ("total_steps", "totalSteps", "max_steps")
_LOSS_NAMES: Final = ("loss", "train_loss", "training_loss")
_PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")

Report = dict[str, Any]


def parse_status(body: bytes, now: float, steps: int | None = None) -> Report:
    """A posted status as a report. `steps`: the last step, from earlier ones; a status of 100% without a step is of
    this step. Raises ValueError."""
    status = json.loads(body)["trainerStatus"]
    metrics = {str(one["name"]): str(one["value"]) for one in status.get("metrics") or ()}
    report: Report = {"at": now}
    for name, names in (("step", _STEP_NAMES), ("steps", _STEPS_NAMES), ("loss", _LOSS_NAMES)):
        value = next((metrics[one] for one in names if one in metrics), None)
        if value is not None and (name != "loss" or math.isfinite(float(value))):
            report[name] = float(value) if name == "loss" else int(float(value))
    if status.get("estimatedRemainingSeconds") is not None:
        report["eta_s"] = float(status["estimatedRemainingSeconds"])
    if status.get("progressPercentage") == 100 and "step" not in report and (steps or report.get("steps")):
        report["step"] = report.get("steps") or steps
    return report


class TrainerStatusServer:
    """Serves from `start` until the process ends; `on_report` is called in threads."""

    def __init__(self, folder: Path, on_report: Callable[[Report], None]) -> None:
        """`folder`: of this user only, for the token. Raises OSError."""
        self._token = secrets.token_urlsafe(32)
        self._token_file = folder / "trainer-status-token"
        handle = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(self._token)
        self._on_report = on_report
        self._steps: int | None = None
        self._server = _BoundedServer(("127.0.0.1", 0), partial(_Handler, self))

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="trainer-status", daemon=True).start()

    def stop(self) -> None:
        """Stop serving, and close the port."""
        self._server.shutdown()
        self._server.server_close()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of the ranks, for a pod with `environ`; none if a variable is set already."""
        if any(name in environ for name in (URL_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE)):
            return {}
        namespace, job = environ.get("MUSTER_NAMESPACE") or "default", environ.get("MUSTER_JOB") or "local"
        path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{quote(namespace)}/trainjobs/{quote(job)}/status"
        variables = {
            URL_VARIABLE: f"http://127.0.0.1:{self._server.server_address[1]}{path}",
            TOKEN_VARIABLE: str(self._token_file),
            CA_VARIABLE: "",
        }
        if any(environ.get(name) for name in _PROXIES):
            for name in ("no_proxy", "NO_PROXY"):
                variables[name] = ",".join(filter(None, (environ.get(name, ""), "127.0.0.1")))
        return variables

    def accepts(self, authorization: str) -> bool:
        """Whether a request has the token."""
        return hmac.compare_digest(authorization.encode("utf-8", "replace"), f"Bearer {self._token}".encode())

    def on_status(self, body: bytes) -> None:
        """A status was posted. Raises ValueError for one that is not valid."""
        try:
            report = parse_status(body, time.time(), self._steps)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"must be {{'trainerStatus': {{...}}}} of KEP-2779: {error!r}") from error
        self._steps = report.get("steps") or self._steps
        self._on_report(report)


class _BoundedServer(ThreadingHTTPServer):
    """Answers so many requests at once, and closes further connections."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no error of the job."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def __init__(self, status: TrainerStatusServer, *arguments: Any) -> None:
        self._status = status
        super().__init__(*arguments)

    def do_POST(self) -> None:
        if not self._status.accepts(self.headers.get("Authorization", "")):
            self._answer(401, "Authorization must be Bearer and the token of the file in " + TOKEN_VARIABLE)
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and int(length) <= MAX_BODY_BYTES):
            self._answer(413, f"body must have a length of at most {MAX_BODY_BYTES} bytes")
            return
        try:
            self._status.on_status(self.rfile.read(int(length)))
        except ValueError as error:
            self._answer(422, str(error)[:500])
            return
        self._answer(200)

    def _answer(self, code: int, error: str = "") -> None:
        body = json.dumps({"error": error} if error else {}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Nothing: the launcher's log is the pod's."""
