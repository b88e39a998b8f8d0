"""Requests to the daemon of a home, which starts it if needed and replaces one with an incompatible API version."""

from __future__ import annotations

import time
from typing import Any

from muster.errors import DaemonError, Refused
from muster.local.connection import DaemonUnavailable, request
from muster.local.home import Home
from muster.local.start import start_daemon
from muster.local.version import API_VERSION, version
from muster.local.virtual_nodes import HOST_SHAPE

_STOP_TIMEOUT_S = 60.0
_STARTUP_TIMEOUT_S = 60.0  # for a daemon to come up
_MAX_DISCONNECTS = 5  # lost connections after which a request fails


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
        until, disconnects = time.monotonic() + _STARTUP_TIMEOUT_S, 0
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
