"""Requests to the daemon of a home, and the start of a daemon that is not running or has an incompatible API version.

The daemon is started in the background, without the client's secrets. If two clients start one at the same time, the
second daemon finds the home locked and its client uses the first.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from muster import errors
from muster.errors import DaemonError, DaemonUnavailable, MusterError, Refused
from muster.local import API_VERSION
from muster.local.environment import daemon_environment
from muster.local.home import Home, check_writable
from muster.local.nodes import HOST_SHAPE
from muster.version import version

_START_TIMEOUT_S = 60.0
_DETACH_TIMEOUT_S = 5.0  # of a daemon that has answered or has not in time; it detaches before it answers
_STOP_TIMEOUT_S = 60.0
_MAX_DISCONNECTS = 5  # lost connections after which a request fails
_LOG_LINES = 15  # of the daemon's log, in the error of a daemon that did not start
_START_FAILED = "StartFailed"
_ERROR_TYPES = {
    kind.__name__: kind
    for kind in (errors.InvalidSpec, errors.Refused, errors.NotFound, errors.Conflict, errors.ClusterError,
                 errors.DaemonError, errors.MusterError)
}  # fmt: skip


def request(path: Path, method: str, url: str, body: Any = None, timeout_s: float = 60.0) -> Any:
    """The decoded response. Raises the daemon's error, `DaemonUnavailable`, or `DaemonError` if the connection
    breaks."""
    connection = _UnixHTTPConnection(path, timeout_s)
    try:
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonUnavailable(f"no daemon is running at {path}") from error
        headers = {"Content-Type": "application/json", "Host": "localhost"}
        connection.request(method, url, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except TimeoutError as error:
        raise DaemonError(
            f"the daemon did not answer within {timeout_s:g} s ({method} {url})", reason="Timeout"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        if method == "GET" and isinstance(error, ConnectionResetError | BrokenPipeError):
            raise DaemonUnavailable(f"the daemon at {path} was killed") from error
        message = f"the connection to the daemon was lost ({method} {url}): {error!r}"
        raise DaemonError(message, reason="ConnectionLost") from error
    finally:
        connection.close()
    if response.status >= 400:
        raise _error_from_response(answer.get("error", {}))
    return answer


def _error_from_response(body: dict[str, str]) -> MusterError:
    message, reason = body.get("message", "the daemon refused the request"), body.get("reason", "Error")
    if reason == "ShuttingDown":
        return DaemonUnavailable(message)
    kind = _ERROR_TYPES.get(body.get("type", ""), MusterError)
    error = kind(message, field=body.get("field", ""), reason=reason)
    error.job = body.get("job", "")
    return error


class _UnixHTTPConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def start_daemon(home: Home, nodes: str | None = None, idle_s: float | None = None) -> None:
    """Start a daemon and wait until it, or another one that has the lock, answers. Raises `Refused` if the
    home cannot be written, and `DaemonError` with the daemon's reason, or StartFailed."""
    check_writable(home.path)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "muster.local.daemon", "--detach", "--home", str(home.path)]
    command += ["--ready-fd", str(write_end)]
    command += ["--nodes", nodes] if nodes is not None else []
    command += ["--idle-seconds", str(idle_s)] if idle_s is not None else []
    log_before = _size(home.log)
    with os.fdopen(read_end, "rb", buffering=0) as ready_pipe:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_end,),
                env=daemon_environment(os.environ, str(Path(sys.executable).parent)),
            )
        except OSError as error:
            raise DaemonError(f"the daemon cannot be started: {error}", reason=_START_FAILED) from error
        finally:
            os.close(write_end)
        answer = _read_ready_line(ready_pipe)
        try:
            _, stderr = child.communicate(timeout=_DETACH_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:  # it did not detach
            stderr = error.stderr or b""
            child.stderr.close()  # type: ignore[union-attr]
    if answer is not None and (answer == "ok" or answer.startswith("AlreadyRunning:")):
        return
    reason, _, message = (answer or "").partition(": ")
    if message:
        raise DaemonError(message, reason=reason)
    output = stderr.decode(errors="replace").strip() or _log_tail(home, log_before)
    failure = (
        f"the daemon was not ready within {_START_TIMEOUT_S:g} s and may still be starting"
        if answer is None
        else "the daemon ended before it was ready"
    )
    details = f"its output:\n{output}" if output else f"it wrote no output; see {home.log}"
    raise DaemonError(f"{failure}; {details}", reason=_START_FAILED)


def _read_ready_line(ready_pipe: IO[bytes]) -> str | None:
    """The line that the daemon writes when it is ready or fails; empty if it exits without one, None if it does neither
    within `_START_TIMEOUT_S`."""
    line = b""
    until = time.monotonic() + _START_TIMEOUT_S
    poll = select.poll()
    poll.register(ready_pipe, select.POLLIN)
    while b"\n" not in line:
        if time.monotonic() >= until:
            return None
        if poll.poll(1000):
            part = ready_pipe.read(4096)
            if not part:
                break
            line += part
    return line.decode(errors="replace").strip()


def _log_tail(home: Home, begin: int) -> str:
    """The last lines of the daemon's log from byte `begin`; from its beginning if a new log was begun."""
    try:
        with open(home.log, "rb") as file:
            file.seek(begin if _size(home.log) >= begin else 0)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_LINES:])
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class DaemonClient:
    """One home's daemon; with `start`, it is started if it is not running and was not stopped by `down`."""

    def __init__(self, home: Home, start: bool) -> None:
        self._home = home
        self._autostart = start

    def ensure_compatible(self) -> None:
        """Replace a daemon with an incompatible API version. A daemon stopped by `down` is not started here. Raises
        `DaemonError`; NotRunning if none is running and none may be started."""
        try:
            self._check_version(self.request("GET", "/status"))
        except DaemonUnavailable:
            if not (self._autostart and self._home.stopped_marker.exists()):
                raise  # else the first request starts one of this version or reports that it was stopped

    def ensure_running(self, nodes: str | None, idle_s: float | None) -> None:
        """Start the daemon, or replace one with other nodes. Raises `Refused` JobsRunning if jobs run on those."""
        try:
            status = self.request("GET", "/status")
        except DaemonUnavailable:
            start_daemon(self._home, nodes, idle_s)
        else:
            if nodes is not None and status["shape"] != ("" if nodes == HOST_SHAPE else nodes):
                self._replace(nodes, idle_s, status)

    def stop(self, force: bool) -> None:
        """Stop the daemon and wait for its end. Raises `Refused` while jobs run, unless `force`."""
        status = request(self._home.socket(), "GET", "/status")
        request(self._home.socket(), "POST", "/stop", {"mode": "down", "force": force})
        self._wait_for_exit(status["pid"], timeout_s=None if force else _STOP_TIMEOUT_S)

    def request(
        self, method: str, url: str, body: Any = None, timeout_s: float = 60.0, start_if_stopped: bool = False
    ) -> Any:
        """One request. If the daemon is not running or the connection is lost, it is started (unless `start` is False)
        and the request retried. A daemon stopped by `down` is started only with `start_if_stopped`.

        All calls are idempotent: a submit carries an id, so that a retry is recognized.
        """
        until, disconnects = time.monotonic() + _START_TIMEOUT_S, 0
        while True:
            try:
                answer = request(self._home.socket(), method, url, body, timeout_s)
            except DaemonError as error:
                disconnects += error.reason == "ConnectionLost"
                can_retry = error.reason == "NotRunning" or (
                    error.reason == "ConnectionLost" and disconnects <= _MAX_DISCONNECTS
                )
                if not (self._autostart and can_retry) or time.monotonic() > until:
                    raise
                if self._home.stopped_marker.exists() and not start_if_stopped:
                    raise DaemonUnavailable("the daemon was stopped; start it with: muster local up") from error
                if not (start_if_stopped or self._home.path.exists()):  # only a submit, an apply or `up` creates it
                    raise DaemonUnavailable(f"{self._home.path} was removed") from error
                self._start_if_absent()
            else:
                return answer

    def _start_if_absent(self) -> None:
        """Start a daemon unless one is starting already."""
        if not self._home.is_locked():
            start_daemon(self._home)
        time.sleep(0.1)

    def _check_version(self, status: dict[str, Any]) -> None:
        lowest, highest = status["api"]
        if lowest <= API_VERSION <= highest:
            return
        if not self._autostart or highest > API_VERSION:
            raise DaemonError(
                f"the daemon (pid {status['pid']}) has version {status['version']}, which is incompatible with this"
                f" client {version()}; use the same version, or stop the daemon with its version's `muster local down`",
                reason="WrongVersion",
            )
        self._replace(None, None, status)

    def _replace(self, nodes: str | None, idle_s: float | None, status: dict[str, Any]) -> None:
        """Replace the daemon; its replicas keep running and the new one takes them over."""
        running = status["running"]
        if nodes is not None and running:
            jobs, them = ("1 job runs", "it") if running == 1 else (f"{running} jobs run", "them")
            raise Refused(
                f"--nodes {nodes}: {jobs} on the current nodes; wait for {them} to end, or cancel {them}",
                field="nodes",
                reason="JobsRunning",
            )
        request(self._home.socket(), "POST", "/stop", {"mode": "handover"})
        self._wait_for_exit(status["pid"], _STOP_TIMEOUT_S)
        start_daemon(self._home, nodes, idle_s)

    def _wait_for_exit(self, pid: int, timeout_s: float | None) -> None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while until is None or time.monotonic() < until:
            try:
                if request(self._home.socket(), "GET", "/status", timeout_s=10.0)["pid"] != pid:
                    return
            except DaemonError as error:
                if isinstance(error, DaemonUnavailable) and not self._home.is_locked():
                    return
            time.sleep(0.05)
        raise DaemonError(f"the daemon (pid {pid}) did not exit; see {self._home.log}", reason="Timeout")
