"""What the daemon learns about a replica from the files its shim leaves, and says to it through them.

The files are the truth, not the daemon's memory of having started something: a daemon that comes back after kill -9
looks here, and so does one that never went away.
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

from muster.local import shim

_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class ShimNotStarted:
    """No shim has begun: it may be started."""


@dataclass(frozen=True, slots=True)
class ShimRunning:
    """A shim holds the lock. `pid` is None in the moment before it has written who it is."""

    pid: int | None
    start_time: int


@dataclass(frozen=True, slots=True)
class ShimExited:
    """The replica's end. `exit_code` is 128 + signal when a signal ended it; `stopped`: we had asked it to stop;
    `failed_at`: when its first rank failed, if a launcher noted that."""

    exit_code: int
    started_at: float
    finished_at: float
    stopped: bool
    out_of_memory: bool
    collector_status: int | None
    failed_at: float | None = None


@dataclass(frozen=True, slots=True)
class ShimLost:
    """The shim began and is gone without a word: killed, or the host went down."""

    boot_id: str


ShimState: TypeAlias = ShimNotStarted | ShimRunning | ShimExited | ShimLost


@dataclass(frozen=True, slots=True)
class PodFolder:
    """The folder that one shim and the daemon share."""

    path: Path

    def write_spec(self, shim_spec: dict[str, Any]) -> None:
        """Make the folder and say what to run. Raises OSError when there is no room."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_atomically(self.path / shim.SPEC, json.dumps(shim_spec))

    def write_stop(self, grace_s: float) -> None:
        """Say how long the replica has, before SIGTERM. Raises OSError when there is no room."""
        _write_atomically(self.path / shim.STOP, json.dumps({"grace_s": grace_s}))

    def prevent_start(self) -> bool:
        """Keep a shim that may be on its way from ever starting the replica. False when one has begun already."""
        try:
            lock = os.open(self.path / shim.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return True  # hence no shim
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
        """Whether a shim has said that it runs the replica."""
        return (self.path / shim.STARTED).exists()

    def first_rank_failure(self) -> tuple[int, float] | None:
        """(Exit code, Unix time) of the first rank that failed, noted while others of the pod may still run."""
        code, at = _read_json(self.path / shim.FAILURE).get("exit_code"), shim.failed_at(str(self.path))
        return (code, at) if type(code) is int and 0 < code < 256 and at is not None else None

    def port_in_use(self) -> bool:
        """Whether a launcher noted that another program listens where the role was to meet."""
        return _read_json(self.path / shim.FAILURE).get("reason") == "PortInUse"

    def state(self) -> ShimState:
        """Where the replica stands. Looks while holding the lock, so that a shim cannot begin in between."""
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

    def log_times(self) -> list[tuple[float, int]]:
        """(Unix time, bytes in the log then), before and after every growth, to a second. Lines that cannot be read,
        since a full disk cut one short, tell nothing."""
        try:
            lines = (self.path / shim.TIMES).read_text().splitlines()
        except OSError:
            return []
        found: list[tuple[float, int]] = []
        for line in lines:
            with suppress(ValueError):
                at, size = line.split()
                found.append((float(at), int(size)))
        return found


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON file that is replaced atomically; empty when it is not there."""
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
