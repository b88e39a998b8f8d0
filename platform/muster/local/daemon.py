"""The daemon of one home: `python -m muster.local.daemon`.

One thread runs the engine and supervises the processes; request threads only change the database. The daemon can be
killed at any time: shims keep the replicas running, and the next daemon takes them over. It exits when no job is
unfinished and no request came for the idle time.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Any

from muster.backoff import Backoff
from muster.cluster import RecordEvent, Write
from muster.engine import Engine, run_cycle
from muster.errors import ClusterError, DaemonError, MusterError, Refused
from muster.lifecycle import is_admitted
from muster.local.home import Home, open_home
from muster.local.server import DaemonServer, RequestTracker
from muster.local.version import API_VERSION, version
from muster.local.wiring import DaemonComponents, assemble

ALREADY_RUNNING_EXIT_CODE = 3  # exit code when another daemon has the home
_LOG = logging.getLogger("muster.local")
_DEFAULT_IDLE_S = 600.0
_HEARTBEAT_POLL_S = 5.0  # interval of reading heartbeats and checkpoints while jobs run
_MAX_SLEEP_S = 60.0
_REPORTS_RETRY_S = 30.0


class Daemon:
    """The main loop."""

    def __init__(self, home: Home, components: DaemonComponents, idle_s: float, lock: int) -> None:
        self._home = home
        self._components = components
        self._idle_s = idle_s
        self._lock = lock
        self._engine = Engine()
        self._started_at = time.time()
        self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._mode = ""  # "", down (replicas are being stopped) or handover (they keep running)
        self._next_cycle_at: float | None = None
        self._failures = Backoff(1.0, 30.0)  # of cycles
        self._reports_not_before = 0.0  # monotonic
        self.tracker = RequestTracker(components.service, self.status, self.request_stop)
        self.tracker.on_change = self.wake

    def wake(self) -> None:
        """Wake the loop after a change. Thread-safe."""
        with suppress(BlockingIOError):  # the pipe is full: the loop will wake up anyway
            os.write(self._wake_write_fd, b"!")

    def status(self) -> dict[str, Any]:
        """The answer of GET /status."""
        unfinished = self._components.service.unfinished_jobs()
        nodes = self._components.cluster.nodes
        is_virtual = bool(self._components.shape)
        return {
            "api": [API_VERSION, API_VERSION],
            "version": version(),
            "pid": os.getpid(),
            "home": str(self._home.path),
            "startedAt": self._started_at,
            "mode": self._mode or "up",
            "nodes": len(nodes),
            "shape": self._components.shape,
            "virtual": is_virtual,
            "note": "virtual nodes provide slots without isolation: all replicas run on this host"
            if is_virtual
            else "",
            "running": sum(is_admitted(job.status) for job in unfinished),
            "waiting": sum(job.status.phase == "Pending" for job in unfinished),
            "suspended": sum(job.status.phase == "Suspended" for job in unfinished),
            "idleExitSeconds": self._idle_s,
        }

    def request_stop(self, mode: str, force: bool) -> None:
        """Stop the daemon. `handover`: replicas keep running. `down`: none run, or with `force` they are stopped."""
        if mode == "handover":
            self._mode = self._mode or "handover"
            self.wake()
            return
        running = [job.metadata.name for job in self._components.service.unfinished_jobs() if is_admitted(job.status)]
        if running and not force:
            names = ", ".join(sorted(running)[:8])
            jobs = "1 job runs" if len(running) == 1 else f"{len(running)} jobs run"
            raise Refused(
                f"{jobs}: {names}; wait for them, cancel or suspend them, or use --force to stop them until the daemon"
                " is started again, when they resume from their last checkpoint",
                reason="JobsRunning",
            )
        self._home.stopped_marker.touch()
        with self._components.cluster.lock:
            self._components.supervisor.stop_all()
        self._mode = "down"
        self.wake()

    def run(self) -> None:
        """Run until idle, stopped, or the home folder was removed."""
        while True:
            if not self._owns_home():
                _LOG.error("%s was removed: stopping everything", self._home.path)
                self._components.supervisor.kill_all()
                return
            try:
                self._run_cycle()
                self._failures.reset()
            except ClusterError as error:
                _LOG.warning("%s; retrying", error)
                self._next_cycle_at = time.time() + self._failures.fail(time.time())
            except Exception:
                _LOG.exception("a cycle failed")
                self._next_cycle_at = time.time() + self._failures.fail(time.time())
            if self._can_exit():
                return
            self._wait()

    def _run_cycle(self) -> None:
        parts = self._components
        with parts.cluster.lock:
            parts.supervisor.sync()
            self._step_reports()
        if self._mode:
            self._next_cycle_at = time.time() + 0.1
        else:
            cycle = run_cycle(parts.cluster, self._engine)
            # Applying the writes also syncs the pods, which may find changes that the engine has not observed yet.
            changed = parts.supervisor.pop_changed() or bool(cycle.writes)
            self._log_events(cycle.writes)
            parts.notifier.waits, parts.notifier.snapshot = cycle.waits, cycle.snapshot
            self._next_cycle_at = time.time() if changed else cycle.wake_at
        parts.notifier.notify()

    def _step_reports(self) -> None:
        """Start or finish reports; their failures must not stop the engine's cycle."""
        if time.monotonic() < self._reports_not_before:
            return
        try:
            self._components.reports.step()
        except Exception as error:
            _LOG.warning("reports: %s: %s; retrying in %g s", type(error).__name__, error, _REPORTS_RETRY_S)
            self._reports_not_before = time.monotonic() + _REPORTS_RETRY_S

    def _log_events(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, RecordEvent):
                job = self._components.store.jobs.get(write.job_uid)
                name = f"{job.metadata.namespace}/{job.metadata.name}" if job is not None else write.job_uid
                _LOG.info("%s: %s: %s", name, write.reason, write.message)

    def _can_exit(self) -> bool:
        with self._components.cluster.lock:
            live_shims = self._components.supervisor.live_shim_count()
        if self._mode == "handover" or (self._mode == "down" and live_shims == 0):
            self._components.notifier.notify()
            return self.tracker.close()
        needed = any(job.status.phase != "Suspended" for job in self._components.service.unfinished_jobs())
        if self._mode or live_shims or self._components.reports.busy or needed:
            return False
        return self.tracker.close_if_idle(self._idle_s)

    def _wait(self) -> None:
        """Sleep until `wake`, the end of a shim, or the next scheduled time."""
        now = time.time()
        with self._components.cluster.lock:
            sync_at, files = self._components.supervisor.next_sync_at(), self._components.supervisor.shim_fds()
        times = [at for at in (self._next_cycle_at, sync_at) if at is not None]
        idle_left = self.tracker.idle_remaining_s(self._idle_s)
        times.append(now + (min(_MAX_SLEEP_S, idle_left) if idle_left > 0 else _HEARTBEAT_POLL_S))
        if files or self._components.reports.busy:
            times.append(now + (1.0 if self._components.reports.busy else _HEARTBEAT_POLL_S))
        poll = select.poll()
        for file in (self._wake_read_fd, *files):
            poll.register(file, select.POLLIN)
        poll.poll(max(0.0, min(times) - now) * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake_read_fd, 65536)

    def _owns_home(self) -> bool:
        try:
            current, ours = os.stat(self._home.lock), os.fstat(self._lock)
        except OSError:
            return False
        return (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino)


def serve(home: Home, options: argparse.Namespace) -> None:
    """Lock the home and serve until the daemon ends. Raises `MusterError`."""
    idle_s = idle_seconds(options.idle_seconds, os.environ)
    lock = take_lock(home)
    parts = assemble(home, options.nodes, options.boot_id_file)
    home.stopped_marker.unlink(missing_ok=True)
    daemon = Daemon(home, parts, idle_s, lock)
    server = DaemonServer(home.socket(), daemon.tracker)

    def on_signal(number: int, frame: FrameType | None) -> None:
        daemon.request_stop("handover", force=False)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    _LOG.info(
        "up: pid %d, %d nodes%s", os.getpid(), len(parts.cluster.nodes), f" ({parts.shape})" if parts.shape else ""
    )
    _report_ready(options, "ok")
    try:
        daemon.run()
    finally:
        home.socket().unlink(missing_ok=True)
        parts.reports.stop()
        parts.store.close()
        _LOG.info("down")


def take_lock(home: Home) -> int:
    """Lock the home for the lifetime of this process. Raises `DaemonError` AlreadyRunning."""
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise DaemonError(
            f"a daemon is already running for {home.path} (pid {holder}); use it, or set MUSTER_HOME",
            reason="AlreadyRunning",
        ) from error
    with suppress(OSError):  # a full disk; not truncated, since the space might not be available again
        os.pwrite(lock, f"{os.getpid()}\n".ljust(32).encode(), 0)
    return lock


def main(argv: Sequence[str] | None = None) -> int:
    """0 after a normal end, 3 when another daemon runs, 1 when it cannot start."""
    options = _parse_arguments(argv)
    try:
        home = open_home(options.home)
        _configure_logging(home.log, foreground=not options.detach)
        if options.detach:
            _detach()
        serve(home, options)
    except MusterError as error:
        _LOG.error("%s", error)
        _report_ready(options, f"{error.reason}: {error}")
        if not options.detach:
            print(f"muster: {error}", file=sys.stderr)
        return ALREADY_RUNNING_EXIT_CODE if error.reason == "AlreadyRunning" else 1
    except Exception as error:  # the waiting client must get the cause
        _LOG.exception("the daemon failed")
        _report_ready(options, f"CannotStart: the daemon cannot start: {type(error).__name__}: {error}; see daemon.log")
        return 1
    return 0


def idle_seconds(option: str | None, environ: Mapping[str, str]) -> float:
    """Seconds without jobs and requests after which the daemon exits. Raises `DaemonError` InvalidIdleTimeout."""
    name, text = ("--idle-seconds", option) if option else ("MUSTER_IDLE_SECONDS", environ.get("MUSTER_IDLE_SECONDS"))
    try:
        seconds = float(text or _DEFAULT_IDLE_S)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise DaemonError(
            f"{name}: must be a finite number of seconds from 0, such as 600; got {text!r}",
            reason="InvalidIdleTimeout",
        )
    return seconds


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m muster.local.daemon", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--home", help="the daemon's folder; default $MUSTER_HOME, else ~/.muster")
    parser.add_argument(
        "--nodes", help="shape of virtual nodes, e.g. 4x8; `host` for the real host; default: as last time"
    )
    parser.add_argument(
        "--idle-seconds",
        help="exit after this time without jobs and requests; default $MUSTER_IDLE_SECONDS, else 600",
    )  # fmt: skip
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--ready-fd", type=int, help="file descriptor on which `ok` or an error is written")
    parser.add_argument(
        "--boot-id-file", type=Path, default=os.environ.get("MUSTER_BOOT_ID_FILE"),
        help="file with the boot id; default the kernel's",
    )  # fmt: skip
    return parser.parse_args(argv)


def _detach() -> None:
    """Detach from the terminal and the parent process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(devnull, fd)


def _configure_logging(path: Path, foreground: bool) -> None:
    logging.raiseExceptions = False  # a full disk must not end the daemon
    handlers: list[logging.Handler] = [RotatingFileHandler(path, maxBytes=2**20, backupCount=2)]
    if foreground:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)


def _report_ready(options: argparse.Namespace, text: str) -> None:
    """Write one line to --ready-fd, once: after the close its number may belong to another file."""
    fd, options.ready_fd = options.ready_fd, None
    if fd is not None:
        with suppress(OSError):  # the parent no longer waits
            os.write(fd, f"{' '.join(text.splitlines())}\n".encode())
            os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
