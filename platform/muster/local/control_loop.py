"""The daemon's loop: runs the engine, supervises the processes, and exits when the daemon is idle or stopped.

Only this thread runs the engine and starts or stops processes; request threads only change the database and wake it.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from muster.backoff import Backoff
from muster.cluster import RecordEvent, Write, WriteStatus
from muster.engine import Engine, run_cycle
from muster.errors import ClusterError, Refused
from muster.kinds.trainingjob.stalls import NO_STEP
from muster.local import API_VERSION
from muster.local.cluster import LocalCluster
from muster.local.home import Home
from muster.local.pod_supervisor import PodSupervisor
from muster.local.reports import ReportBuilder
from muster.local.service import ChangeNotifier, DaemonService
from muster.local.stalled_jobs import StalledJobs
from muster.local.store import SqliteStore
from muster.version import version
from muster.workload.conditions import is_admitted

_LOG = logging.getLogger("muster.local")
_HEARTBEAT_POLL_S = 5.0  # interval of reading heartbeats and checkpoints while jobs run
_MAX_SLEEP_S = 60.0
_REPORTS_RETRY_S = 30.0
_FIRST_REQUEST_TIMEOUT_S = 60.0
_USAGE_CLEANUP_S = 86_400.0  # interval of deleting usage older than the retention
_USAGE_RETRY_S = 3600.0  # until it is tried again
_VIRTUAL_NODES_NOTE = "virtual nodes provide slots without isolation: all replicas run on this host"


@dataclass(frozen=True, slots=True)
class DaemonComponents:
    """The parts of a daemon that its loop drives."""

    store: SqliteStore
    supervisor: PodSupervisor
    cluster: LocalCluster
    service: DaemonService
    reports: ReportBuilder
    stalled: StalledJobs
    notifier: ChangeNotifier
    shape: str  # of virtual nodes; empty for the host


class RequestTracker:
    """Counts open requests, so that the daemon exits only when it is idle. Thread-safe."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change = on_change  # called after a request that may have changed something
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._open_requests = 0
        self._any_served = False
        self._idle_since = clock()

    @property
    def closed(self) -> bool:
        return self._closed

    def begin_request(self) -> None:
        """Count a request. Raises `ClusterError` ShuttingDown if no more are accepted."""
        with self._lock:
            if self._closed:
                raise ClusterError("the daemon is shutting down", reason="ShuttingDown")
            self._open_requests += 1

    def end_request(self, may_have_changed: bool = False) -> None:
        with self._lock:
            self._open_requests -= 1
            self._idle_since = self._clock()
            first, self._any_served = not self._any_served, True
        if may_have_changed or first:  # after the first request the idle time is shorter: see _idle_remaining_s
            self._on_change()

    def close_if_idle(self, idle_s: float) -> bool:
        """Accept no more requests if none is open and none came for `idle_s`; True if closed.

        The first request, for which the daemon was started, is awaited for at least a minute, whatever `idle_s` is.
        """
        with self._lock:
            if self._open_requests == 0 and self._idle_remaining_s(idle_s) <= 0:
                self._closed = True
            return self._closed

    def idle_remaining_s(self, idle_s: float) -> float:
        """Seconds until `close_if_idle` may close; 0 or less if it may now, or once the open requests end."""
        with self._lock:
            return self._idle_remaining_s(idle_s)

    def _idle_remaining_s(self, idle_s: float) -> float:
        timeout_s = idle_s if self._any_served else max(idle_s, _FIRST_REQUEST_TIMEOUT_S)
        return self._idle_since + timeout_s - self._clock()

    def close(self) -> bool:
        """Accept no more requests; True once the open ones are answered."""
        with self._lock:
            self._closed = True
            return self._open_requests == 0


class ControlLoop:
    """The loop of one daemon. `lock` is the file descriptor of the locked `home.lock`."""

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
        self._usage_cleanup_at = time.time() + _USAGE_CLEANUP_S  # the daemon did it when it started
        self.requests = RequestTracker(self.wake)

    def wake(self) -> None:
        """Wake the loop after a change. Thread-safe."""
        with suppress(BlockingIOError):  # the pipe is full: the loop wakes up anyway
            os.write(self._wake_write_fd, b"!")

    def status(self) -> dict[str, Any]:
        """The response to GET /status."""
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
            "note": _VIRTUAL_NODES_NOTE if is_virtual else "",
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

    def owns_home(self) -> bool:
        """Whether the home's lock is still the file that this daemon has locked: the home was neither removed nor
        replaced. True also if its path cannot be read for another reason, such as a failed mount. Thread-safe."""
        try:
            current, locked = os.stat(self._home.lock), os.fstat(self._lock)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return os.path.samestat(current, locked)

    def run(self) -> None:
        """Run until idle, stopped, or the home folder was removed."""
        while self.owns_home():
            try:
                self._run_cycle()
                self._failures.reset()
            except Exception as error:
                if isinstance(error, ClusterError):
                    _LOG.warning("%s; retrying", error)
                else:
                    _LOG.exception("a cycle failed")
                self._next_cycle_at = time.time() + self._failures.fail(time.time())
            if self._can_exit():
                break
            self._wait()
        if not self.owns_home():
            _LOG.error("%s was removed: stopping all jobs and the daemon", self._home.path)
            with self._components.cluster.lock:
                self._components.supervisor.kill_all()

    def _run_cycle(self) -> None:
        parts = self._components
        with parts.cluster.lock:
            parts.supervisor.sync()
            self._step_reports()
            self._delete_old_usage()
        if self._mode:
            self._next_cycle_at = time.time() + 0.1
        else:
            cycle = run_cycle(parts.cluster, self._engine)
            # Applying the writes also syncs the pods, which may find changes that the engine has not observed yet.
            changed = parts.supervisor.pop_changed() or bool(cycle.writes)
            self._log_events(cycle.writes)
            self._ask_stalled(cycle.writes)
            self._observe_preemptions(cycle.writes)
            parts.notifier.publish(cycle.waits, cycle.snapshot)
            wake_times = (cycle.wake_at, parts.cluster.quarantine_ends_at())
            wake_at = min((at for at in wake_times if at is not None), default=None)
            self._next_cycle_at = time.time() if changed else wake_at
        parts.notifier.notify()

    def _step_reports(self) -> None:
        """Start or finish reports, and those of stalled jobs; their failures must not stop the engine's cycle."""
        if time.monotonic() < self._reports_not_before:
            return
        try:
            self._components.reports.step()
            self._components.stalled.step()
        except Exception as error:
            _LOG.warning("reports: %s: %s; retrying in %g s", type(error).__name__, error, _REPORTS_RETRY_S)
            self._reports_not_before = time.monotonic() + _REPORTS_RETRY_S

    def _delete_old_usage(self) -> None:
        """Once a day; a full disk must not stop the engine's cycle."""
        now, store = time.time(), self._components.store
        if now >= self._usage_cleanup_at:
            self._usage_cleanup_at = now + _USAGE_CLEANUP_S
            try:
                with store.transaction():
                    store.delete_old_usage(now)
            except ClusterError as error:
                self._usage_cleanup_at = now + _USAGE_RETRY_S
                _LOG.warning("old usage is not deleted: %s; retrying in 1 h", error)

    def _observe_preemptions(self, writes: Sequence[Write]) -> None:
        """Note which jobs were preempted, for readers: of the jobs just written, and in the first cycle of all."""
        jobs, notifier = self._components.store.jobs, self._components.notifier
        written = [write.job_uid for write in writes if isinstance(write, WriteStatus)]
        for uid in list(jobs) if notifier.cycle is None else written:
            if (job := jobs.get(uid)) is not None:
                notifier.preemptions.observe(job)

    def _log_events(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, RecordEvent):
                job = self._components.store.find_job(write.job_uid)
                name = f"{job.metadata.namespace}/{job.metadata.name}" if job is not None else write.job_uid
                _LOG.info("%s: %s: %s", name, write.reason, write.message)

    def _ask_stalled(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, RecordEvent) and write.reason == NO_STEP:
                with self._components.cluster.lock:
                    self._components.stalled.ask(write.job_uid)

    def _can_exit(self) -> bool:
        with self._components.cluster.lock:
            live_shims = self._components.supervisor.live_shim_count()
        if self._mode == "handover" or (self._mode == "down" and live_shims == 0):
            self._components.notifier.notify()
            return self.requests.close()
        needed = any(job.status.phase != "Suspended" for job in self._components.service.unfinished_jobs())
        if self._mode or live_shims or self._components.reports.busy or needed:
            return False
        return self.requests.close_if_idle(self._idle_s)

    def _wait(self) -> None:
        """Sleep until `wake`, the end of a shim, or the next scheduled time."""
        now = time.time()
        with self._components.cluster.lock:
            sync_at, files = self._components.supervisor.next_sync_at(), self._components.supervisor.shim_fds()
        times = [at for at in (self._next_cycle_at, sync_at) if at is not None]
        idle_left = self.requests.idle_remaining_s(self._idle_s)
        times.append(now + (min(_MAX_SLEEP_S, idle_left) if idle_left > 0 else _HEARTBEAT_POLL_S))
        is_busy = self._components.reports.busy or self._components.stalled.busy
        if files or is_busy:
            times.append(now + (1.0 if is_busy else _HEARTBEAT_POLL_S))
        poll = select.poll()
        for file in (self._wake_read_fd, *files):
            poll.register(file, select.POLLIN)
        poll.poll(max(0.0, min(times) - now) * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake_read_fd, 65536)
