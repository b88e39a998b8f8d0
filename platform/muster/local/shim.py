"""The parent process of one replica, which outlives the daemon: `python -I -S shim.py FOLDER`.

The daemon may be killed at any instruction, yet a replica must run exactly once and its exit code must be known. So
each replica has a parent that takes a lock before it starts anything, reaps the whole tree of processes, and writes the
exit code to a file. A host may run hundreds of shims, so this file imports few modules and nothing of Muster.

Files in FOLDER; the shim writes all except `spec.json`, `stop.json` and `failure.json`:

    spec.json      what to run: argv, env, cwd, log, log_limit, grace_s, umask, boot_id, optionally a collector
    lock           locked (flock) while the shim runs
    started.json   the shim's pid and start time; once it exists, the replica is never started again
    times          "earliest latest bytes-in-log": the log had this size at some time between these two (Unix time);
                   just before and after it grew, at most a second apart
    stop.json      {"grace_s"}: read at SIGTERM
    failure.json   {"exit_code", "failed_at"}: written by a launcher when its first rank fails (MUSTER_FAILURE_FILE)
    exit.json      exit code and times; written last, once no process of the replica is left but those of other users
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

SPEC, LOCK, STARTED, TIMES, STOP, EXIT = "spec.json", "lock", "started.json", "times", "stop.json", "exit.json"
FAILURE = "failure.json"
ALREADY_RUNS, ALREADY_RAN, NO_SPACE = 75, 76, 74  # exit codes of a shim that started nothing
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a replica that could not start, as those of a shell
_EXIT_BYTES = 4096
_TICK_S = 1.0
_MIN_DRAIN_S = 2.0
_MAX_LINE_BYTES = 64 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Shim:
    """Runs one replica; the lock is held."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.main_pid = 0  # 0: not running
        self.collector_pid = 0
        self.main_status: int | None = None
        self.collector_status: int | None = None
        self.deadline: float | None = None  # monotonic; end of the grace period
        self.stopped = False
        self.killed = False
        self.log_size = -1  # unknown
        self.log_dropped = 0  # bytes that were dropped from the beginning of the log
        self.log_checked_at: tuple[float, float] | None = None  # last check without growth; None if it is in `times`
        self.next_log_check = 0.0  # monotonic

    def run(self) -> None:
        """Start the processes, wait, clean up, write the exit file."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        out_of_memory_kills = _out_of_memory_kills()
        started_at = time.time()
        self.log_size, self.log_checked_at = 0, (started_at, started_at)  # no process has written to it
        if self.spec.get("collector"):
            self.collector_pid = _spawn(self.spec["collector"], self.spec["umask"])
        self.spec["env"]["MUSTER_FAILURE_FILE"] = os.path.join(self.folder, FAILURE)
        self.main_pid = _spawn(self.spec, self.spec["umask"])
        while self.main_pid:
            self._wait()
            if self.main_pid and self._grace_expired():
                _kill(self.main_pid, signal.SIGKILL)
                self.killed = True
        finished_at = time.time()
        self._kill_descendants(keep_pid=self.collector_pid)
        self._drain_collector()
        self._kill_descendants(keep_pid=0)
        self._record_log_size()
        code = os.waitstatus_to_exitcode(self.main_status or 0)
        self._write_exit(
            {
                "exit_code": code if code >= 0 else 128 - code,
                "signal": -code if code < 0 else None,
                "started_at": started_at,
                "finished_at": finished_at,
                "failed_at": failed_at(self.folder) if code else None,
                "ended_at": time.time(),
                "stopped": self.stopped,
                "killed": self.killed,
                "out_of_memory": code in (-9, 137) and not self.killed and _out_of_memory_kills() > out_of_memory_kills,
                "collector_status": self.collector_status,
                "boot_id": self.spec["boot_id"],
            }
        )

    def _wait(self) -> None:
        """Sleep until a signal, the deadline or the next check of the log; then reap children."""
        until = self.next_log_check
        if self.deadline is not None and not self.killed:
            until = min(until, self.deadline)
        received = signal.sigtimedwait(_SIGNALS, max(0.0, until - time.monotonic()))
        if received is not None and received.si_signo != signal.SIGCHLD:
            self._stop()
        self._reap()
        if time.monotonic() >= self.next_log_check:
            self._record_log_size()
            self.next_log_check = time.monotonic() + _TICK_S

    def _stop(self) -> None:
        """Send SIGTERM to the main process and start the grace period, as a kubelet does.

        SIGTERM is sent once: a repeated request, for example of a restarted daemon, can only shorten the grace period,
        since many programs, Muster's launcher included, exit at a second SIGTERM without a checkpoint.
        """
        grace_s = self.spec["grace_s"]
        try:
            with open(os.path.join(self.folder, STOP)) as file:
                grace_s = float(json.load(file)["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no other grace period was given, or the disk was full: that of the spec applies
        end = time.monotonic() + grace_s
        self.deadline = end if self.deadline is None else min(self.deadline, end)
        if self.main_pid and not self.stopped:
            self.stopped = True
            _kill(self.main_pid, signal.SIGTERM)

    def _grace_expired(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main_pid:
                self.main_pid, self.main_status = 0, status
            elif pid == self.collector_pid:
                self.collector_pid, self.collector_status = 0, os.waitstatus_to_exitcode(status)

    def _kill_descendants(self, keep_pid: int) -> None:
        """Kill until no descendant is left but `keep_pid` and those of other users. Orphans become children of this
        process, so its children are enough."""
        kept = {keep_pid}
        while True:
            self._reap()
            remaining = [pid for pid in _children() if pid not in kept]
            if not remaining:
                return
            kept.update(pid for pid in remaining if not _kill(pid, signal.SIGKILL))
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)

    def _drain_collector(self) -> None:
        """Let the collector process the last files; if a grace period runs, until its end."""
        if not self.collector_pid:
            return
        os.kill(self.collector_pid, signal.SIGTERM)
        until = time.monotonic() + self.spec["collector"]["drain_s"]
        while self.collector_pid and time.monotonic() < until:
            if self.deadline is not None:
                until = min(until, max(self.deadline, time.monotonic() + _MIN_DRAIN_S))
                self.deadline = None
            self._wait()

    def _record_log_size(self) -> None:
        """Record the log's size, so that it can be read by time although its lines have none."""
        try:
            earliest, size = time.time(), os.stat(self.spec["log"]).st_size
            if size < self.log_size:  # the job truncated it
                self._forget_log_sizes()
            if size < self.log_dropped:
                self.log_dropped = 0
            limit = self.spec.get("log_limit", 0)
            if limit and size - self.log_dropped > limit:
                self._drop_oldest_log(size, limit)
                size = os.stat(self.spec["log"]).st_size
            checked_at = earliest, time.time()
            if size == self.log_size:
                self.log_checked_at = checked_at
                return
            with open(os.path.join(self.folder, TIMES), "a") as file:
                if self.log_checked_at is not None:  # before the growth
                    file.write("{!r} {!r} {}\n".format(*self.log_checked_at, self.log_size))
                file.write("{!r} {!r} {}\n".format(*checked_at, size))
            self.log_size, self.log_checked_at = size, None
        except OSError:
            pass  # a full disk or a removed folder affects `times` only, not the replica

    def _drop_oldest_log(self, size: int, limit: int) -> None:
        """Keep the newest three quarters of `limit`, after a line that says what was dropped. Raises OSError.

        A hole is punched: the file keeps its size, so that offsets of writers and readers stay valid. On a file system
        without this, the whole log is dropped.
        """
        file = os.open(self.spec["log"], os.O_RDWR | os.O_CLOEXEC)
        try:
            cut = size - limit * 3 // 4
            end_of_line = os.pread(file, _MAX_LINE_BYTES, cut).find(b"\n")
            cut += end_of_line + 1
            line = f"muster: the first {cut} bytes of this log were dropped; the limit is {limit} bytes\n".encode()
            os.pwrite(file, line, cut - len(line))  # before the hole, since on a full disk this block is allocated
            if _punch(file, cut - len(line)):
                self.log_dropped = cut - len(line)
                return
            os.ftruncate(file, 0)
            os.pwrite(file, f"muster: {size} bytes of this log were dropped; the limit is {limit}\n".encode(), 0)
            self._forget_log_sizes()
        finally:
            os.close(file)

    def _forget_log_sizes(self) -> None:
        """Empty `times`: its sizes are of bytes that the log no longer has. Raises OSError."""
        self.log_size, self.log_checked_at = -1, None
        os.truncate(os.path.join(self.folder, TIMES), 0)

    def _write_exit(self, end: dict[str, Any]) -> None:
        """Write into the space reserved at the start, so that it succeeds on a full disk."""
        reserved = os.path.join(self.folder, EXIT + ".tmp")
        text = json.dumps(end).encode().ljust(_EXIT_BYTES)
        file = os.open(reserved, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(file, text, 0)
        os.close(file)
        os.rename(reserved, os.path.join(self.folder, EXIT))


def failed_at(folder: str) -> float | None:
    """Unix time when the first rank failed, as the launcher recorded it, or None."""
    try:
        with open(os.path.join(folder, FAILURE)) as file:
            at = json.load(file)["failed_at"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(at) if type(at) in (int, float) and 0 < at < float("inf") else None


def _spawn(command: dict[str, Any], umask: int) -> int:
    """Fork and exec `command` in its own session; output goes to its log, and it is killed if the shim is."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)  # the shim ended before the line above took effect
        os.umask(umask)
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for number in (*_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        # A SIGTERM before the collector has a handler must be pending, not kill it.
        signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGTERM,) if command.get("holds_sigterm") else ())
        os.chdir(command["cwd"])
        os.execvpe(command["argv"][0], command["argv"], command["env"])
    except BaseException as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        try:
            os.write(2, f"muster: cannot start {command['argv'][0]} in {command['cwd']}: {error}\n".encode())
        finally:
            os._exit(code)


def _kill(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a child that was not reaped; False if it is of another user, as one that sudo started."""
    try:
        os.kill(pid, number)
    except PermissionError:
        return False
    return True


def _children() -> list[int]:
    """Pids of the children of this process, including zombies."""
    own_pid = os.getpid()
    try:
        with open(f"/proc/{own_pid}/task/{own_pid}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == own_pid]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _out_of_memory_kills() -> int:
    """The number of processes that the kernel has killed since boot because memory was exhausted."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def _punch(file: int, length: int) -> bool:
    """Deallocate the first `length` bytes of a file, which then read as zeros; False if that is not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or libc.fallocate  # musl has only fallocate, with 64 bits
    return bool(function(file, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length)) == 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start_time() -> int:
    """When this process started, in clock ticks since boot; with the pid it identifies a process."""
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def _acquire_lock(lock: int) -> bool:
    """Take the lock, within half a second, since a daemon that checks the lock holds it for a moment."""
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.01)
    return False


def main(folder: str) -> NoReturn:
    """Run the replica of FOLDER unless a shim does or did."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # signals may be sent once started.json exists
    lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _acquire_lock(lock):
        sys.exit(ALREADY_RUNS)
    started = os.path.join(folder, STARTED)
    if os.path.exists(started) or os.path.exists(os.path.join(folder, EXIT)):
        sys.exit(ALREADY_RAN)
    try:
        with open(os.path.join(folder, SPEC)) as file:
            spec = json.load(file)
        reserved = os.open(os.path.join(folder, EXIT + ".tmp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(reserved, b" " * _EXIT_BYTES, 0)
        os.close(reserved)
        with open(started + ".tmp", "w") as file:
            json.dump({"pid": os.getpid(), "start_time": _start_time(), "boot_id": spec["boot_id"]}, file)
        os.rename(started + ".tmp", started)
    except OSError as error:
        print(f"muster: cannot write to {folder}: {error}", file=sys.stderr)
        sys.exit(NO_SPACE)
    Shim(folder, spec).run()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
