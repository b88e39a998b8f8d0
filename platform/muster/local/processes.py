"""Processes of this host: handles that cannot refer to another process, and killing by environment."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.errors import DaemonError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KILL_TIMEOUT_S = 5.0


def boot_id(file: Path | None = None) -> str:
    """An id that changes with every start of this host. Raises `DaemonError`."""
    try:
        return (file or _BOOT_ID).read_text().strip()
    except OSError as error:
        raise DaemonError(f"the daemon requires Linux: {file or _BOOT_ID}: {error.strerror}") from error


def check_platform() -> None:
    """Raises `DaemonError` on a system without pidfds."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise DaemonError("the daemon requires Linux 5.4 or newer; submit to a cluster instead")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pidfd, so that no signal reaches another process that got its pid."""

    pid: int
    fd: int

    @classmethod
    def find(cls, pid: int, started: int | None = None) -> Process | None:
        """The process `pid` if it exists and, if given, started at `started`."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if started is not None and start_time(pid) != started:
            os.close(fd)
            return None
        return cls(pid, fd)

    def has_exited(self) -> bool:
        """Whether it has ended; a zombie has."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; no error if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        """Close the file descriptor."""
        os.close(self.fd)


def kill_matching(matches: Callable[[frozenset[bytes]], bool]) -> int:
    """Kill all processes of this user whose initial environment ("NAME=value" as bytes) matches; returns their number.

    Returns once they have ended, or after 5 s.
    """
    killed: dict[int, Process] = {}
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        found = [process for process in _find_matching(matches) if process.pid not in killed]
        for process in found:
            process.send_signal(signal.SIGKILL)
            killed[process.pid] = process
        if not found and all(process.has_exited() for process in killed.values()):
            break
        time.sleep(0.005)
    for process in killed.values():
        process.close()
    return len(killed)


def _find_matching(matches: Callable[[frozenset[bytes]], bool]) -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            process = Process.find(int(entry.name))
        except OSError:
            continue
        if process is None:
            continue
        try:
            variables = frozenset(Path(entry.path, "environ").read_bytes().split(b"\0"))
        except OSError:
            variables = frozenset()
        if matches(variables):
            yield process
        else:
            process.close()
