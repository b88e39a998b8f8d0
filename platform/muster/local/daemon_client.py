"""The daemon of a home as somebody to ask: there when it is asked, or started; of a version that one can talk to, or
replaced."""

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
_MAX_DISCONNECTS = 5  # times that one request may end without an answer


class DaemonClient:
    """One home's daemon; with `start`, one is started where there is none and nobody stopped it."""

    def __init__(self, home: Home, start: bool) -> None:
        self._home = home
        self._autostart = start

    def ensure_compatible(self) -> None:
        """Have a daemon of a version that this client can talk to. One that was stopped on purpose stays so until it is
        asked for what starts it. Raises `DaemonError`; NotRunning when there is none and none is to be started."""
        try:
            self._check_version(self.request("GET", "/status"))
        except DaemonUnavailable:
            if not (self._autostart and self._home.stopped_marker.exists()):
                raise  # else whatever is asked first starts one of our version, or tells that it was stopped

    def ensure_running(self, nodes: str | None, idle_s: float | None) -> None:
        """Start the daemon, or replace one that shows other nodes. Raises `Refused` JobsRunning when it cannot be."""
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
        """One request; made again when the daemon was not there or broke off, if we may start another. One that was
        stopped on purpose is started only where `starts_stopped`.

        Every call may be made twice: a submit carries a mark by which its second try is known.
        """
        until, broke_off = time.monotonic() + _STARTUP_TIMEOUT_S, 0
        while True:
            try:
                answer = request(self._home.socket(), method, url, body, timeout_s)
            except DaemonError as error:
                broke_off += error.reason == "ConnectionLost"
                again = error.reason == "NotRunning" or (
                    error.reason == "ConnectionLost" and broke_off <= _MAX_DISCONNECTS
                )
                if not (self._autostart and again) or time.monotonic() > until:
                    raise
                if self._home.stopped_marker.exists() and not start_if_stopped:
                    raise DaemonUnavailable("the daemon was stopped; start it with: muster local up") from error
                self._start_if_absent()
            else:
                return answer

    def _start_if_absent(self) -> None:
        """Have a daemon that answers soon."""
        if not self._home.is_locked():
            start_daemon(self._home)
        time.sleep(0.1)

    def _check_version(self, status: dict[str, Any]) -> None:
        lowest, highest = status["api"]
        if lowest <= API_VERSION <= highest:
            return
        if not self._autostart or highest > API_VERSION:
            raise DaemonError(
                f"the daemon (pid {status['pid']}) is Muster {status['version']}, this client is {version()}:"
                " they cannot talk to each other; use the same version, or stop it with that one's `muster local down`",
                reason="WrongVersion",
            )
        self._replace(None, None, status)

    def _replace(self, nodes: str | None, idle_s: float | None, status: dict[str, Any]) -> None:
        """Another daemon in its place. Replicas go on: the new one takes them over."""
        running = status["running"]
        if nodes is not None and running:
            jobs, them = ("1 job runs", "it") if running == 1 else (f"{running} jobs run", "them")
            raise Refused(
                f"--nodes {nodes}: {jobs} on the present nodes; let {them} end first",
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
        raise DaemonError(f"the daemon (pid {pid}) does not end; see {self._home.log}", reason="Timeout")
