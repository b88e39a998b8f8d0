"""The folder through which the daemon and the shim of a pod communicate: spec, stop request, state, exit.

The pod's state is read from these files only, so that a daemon restarted after kill -9 sees the same as one that ran
all the time. shim.py describes the files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from muster.errors import NotFound
from muster.local import shim

_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class LogSize:
    """The bytes that a log had at some time from `earliest` to `latest` (Unix time)."""

    earliest: float
    latest: float
    size: int


@dataclass(frozen=True, slots=True)
class ShimNotStarted:
    """No shim has started the replica; one may be started."""


@dataclass(frozen=True, slots=True)
class ShimRunning:
    """A shim holds the lock. `pid` is None until it has written its start file."""

    pid: int | None
    start_time: int


@dataclass(frozen=True, slots=True)
class ShimExited:
    """The replica has ended. `exit_code` is 128 + signal if a signal ended it; `stopped`: the daemon requested it;
    `failed_at`: when its first rank failed, if a launcher recorded it."""

    exit_code: int
    started_at: float
    finished_at: float
    stopped: bool
    out_of_memory: bool
    collector_status: int | None
    failed_at: float | None = None


@dataclass(frozen=True, slots=True)
class ShimLost:
    """The shim started the replica and ended without an exit file: it was killed, or the host was restarted."""

    boot_id: str


ShimState: TypeAlias = ShimNotStarted | ShimRunning | ShimExited | ShimLost


@dataclass(frozen=True, slots=True)
class PodFolder:
    """The folder of one pod."""

    path: Path

    def write_spec(self, shim_spec: dict[str, Any]) -> None:
        """Create the folder and write what to run. Raises OSError, for example on a full disk."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_atomically(self.path / shim.SPEC, json.dumps(shim_spec))

    def read_spec(self) -> dict[str, Any]:
        """What the shim runs. Raises `NotFound` if the pod has not started."""
        try:
            found: dict[str, Any] = json.loads((self.path / shim.SPEC).read_text())
        except FileNotFoundError as error:
            raise NotFound(f"pod {self.path.name} has not started", reason="NotStarted") from error
        return found

    def write_stop(self, grace_s: float) -> None:
        """Write the grace period, before SIGTERM is sent. Raises OSError, for example on a full disk."""
        _write_atomically(self.path / shim.STOP, json.dumps({"grace_s": grace_s}))

    def prevent_start(self) -> bool:
        """Prevent a shim that may be starting from starting the replica; False if one has started it."""
        try:
            lock = os.open(self.path / shim.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return True  # without folder there is no shim
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.path / shim.STARTED).touch()
            return True
        except OSError:
            return False
        finally:
            os.close(lock)

    def has_started(self) -> bool:
        return (self.path / shim.STARTED).exists()

    def first_rank_failure(self) -> tuple[int, float] | None:
        """(exit code, Unix time) of the first rank that failed; others of the pod may still run."""
        code, at = _read_json(self.path / shim.FAILURE).get("exit_code"), shim.failed_at(str(self.path))
        return (code, at) if type(code) is int and 0 < code < 256 and at is not None else None

    def port_in_use(self) -> bool:
        """Whether a launcher recorded that another program uses the rendezvous port."""
        return _read_json(self.path / shim.FAILURE).get("reason") == "PortInUse"

    def state(self) -> ShimState:
        """The replica's state. Holds the lock meanwhile, so that no shim can start in between."""
        try:
            lock = os.open(self.path / shim.LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return ShimNotStarted()
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            started = _read_json(self.path / shim.STARTED)
            return ShimRunning(started.get("pid"), started.get("start_time", 0))
        else:
            return self._state_without_shim()
        finally:
            os.close(lock)

    def _state_without_shim(self) -> ShimState:
        end = _read_json(self.path / shim.EXIT)
        if end:
            return ShimExited(
                exit_code=int(end["exit_code"]),
                started_at=end["started_at"],
                finished_at=end["finished_at"],
                stopped=end["stopped"],
                out_of_memory=end["out_of_memory"],
                collector_status=end["collector_status"],
                failed_at=end.get("failed_at"),
            )
        started = _read_json(self.path / shim.STARTED)
        return ShimLost(started["boot_id"]) if started else ShimNotStarted()

    def log_sizes(self) -> list[LogSize]:
        """The log's size before and after each growth, at most a second apart.

        Lines that are truncated, as a full disk may cause, or end before they begin, after a change of the clock, are
        ignored.
        """
        try:
            lines = (self.path / shim.TIMES).read_text().split("\n")[:-1]
        except OSError:
            return []
        found: list[LogSize] = []
        for line in lines:
            with suppress(ValueError):
                earliest, latest, size = line.split()
                entry = LogSize(float(earliest), float(latest), int(size))
                if entry.earliest <= entry.latest:
                    found.append(entry)
        return found


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that is replaced atomically; empty if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_atomically(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
