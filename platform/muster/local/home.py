"""Where the engine of this host keeps everything: one folder that only its user can enter.

muster.db             the database; the truth
daemon.lock           held by the one daemon; tells its pid
daemon.sock           the only way in (or daemon.sock.path, which says where it is when this path is too long)
reserve               disk space that a daemon gives back when it starts on a full disk
left-out.json         names of variables that a job did not get, as its user was told last
daemon.log            what the daemon has to say; two older ones are kept
pods/<uid>/<pod>/     what shims and daemon tell each other (see shim.py); goes with the job's record
runs/<namespace>-<job>-<uid8>/    the run folder; stays until its user removes it
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.errors import DaemonError, Refused

_HOME_UNUSABLE = "HomeUnusable"
_MAX_SOCKET_PATH_BYTES = 107  # bytes; sun_path is 108 with its final zero


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one absolute folder."""

    path: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "muster.db"

    @property
    def reserve_file(self) -> Path:
        """Disk space for a daemon that starts on a full disk."""
        return self.path / "reserve"

    @property
    def lock(self) -> Path:
        """What the one daemon holds."""
        return self.path / "daemon.lock"

    @property
    def log(self) -> Path:
        """The daemon's own log."""
        return self.path / "daemon.log"

    @property
    def left_out(self) -> Path:
        """Names of variables that a job did not get, as its user was told last."""
        return self.path / "left-out.json"

    @property
    def socket_pointer(self) -> Path:
        """A file with the socket's path, when that is not in this folder."""
        return self.path / "daemon.sock.path"

    @property
    def stopped_marker(self) -> Path:
        """From a deliberate stop of the daemon until its next start: only `up`, a submit or an apply starts it."""
        return self.path / "daemon.stopped"

    @property
    def runs_dir(self) -> Path:
        """Run folders."""
        return self.path / "runs"

    def run_dir(self, namespace: str, job: str, uid: str) -> Path:
        """The run folder of one job."""
        return self.runs_dir / f"{namespace}-{job}-{uid[:8]}"

    @property
    def pods_dir(self) -> Path:
        """What shims and daemon tell each other."""
        return self.path / "pods"

    def job_pods_dir(self, uid: str) -> Path:
        """The folder of all pods of one job."""
        return self.pods_dir / uid

    def pod_dir(self, uid: str, role: str, index: int, attempt: int) -> Path:
        """The folder that the shim of one pod and the daemon share."""
        return self.job_pods_dir(uid) / f"{role}-{index}.attempt-{attempt}"

    def is_locked(self) -> bool:
        """Whether a daemon has this home."""
        try:
            lock = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def socket(self) -> Path:
        """Where the daemon listens. A folder outside the home is checked: a path in /tmp can be anyone's."""
        direct = self.path / "daemon.sock"
        if _fits_socket_path(direct):
            return direct
        elsewhere = Path(self.socket_pointer.read_text().strip())
        _check_socket_dir(elsewhere.parent)
        return elsewhere


def home_path(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder asked for, else $MUSTER_HOME, else ~/.muster; absolute, not yet made."""
    chosen = given if given is not None else os.environ.get("MUSTER_HOME") or "~/.muster"
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def open_home(given: str | os.PathLike[str] | None = None) -> Home:
    """Make the folder if need be and check that it is ours alone.

    Raises `Refused` when it belongs to someone else, others can enter it, or it cannot be made; `DaemonError` when no
    socket path short enough can be found.
    """
    path = home_path(given)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"MUSTER_HOME {path}: cannot be made: {error.strerror}; set MUSTER_HOME to a folder you may write to",
            reason=_HOME_UNUSABLE,
        ) from error
    _check_private(path)
    home = Home(path)
    if not _fits_socket_path(path / "daemon.sock") and not _points_to_directory(home.socket_pointer):
        folder = _fallback_socket_dir(path)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            _check_socket_dir(folder)
            home.socket_pointer.write_text(f"{folder / 'daemon.sock'}\n")
        except OSError as error:
            raise DaemonError(f"no place for the daemon's socket: {folder}: {error.strerror}") from error
    return home


def _fits_socket_path(path: Path) -> bool:
    return len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES


def _fallback_socket_dir(home: Path) -> Path:
    """A short private folder that follows from the home's path."""
    name = f"muster-{os.getuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for base in (runtime, "/tmp"):
        if base and os.path.isdir(base) and _fits_socket_path(Path(base) / name / "daemon.sock"):
            return Path(base) / name
    raise DaemonError(f"no socket path under 108 bytes for MUSTER_HOME {home}; choose a shorter MUSTER_HOME")


def _points_to_directory(pointer: Path) -> bool:
    try:
        return Path(pointer.read_text().strip()).parent.is_dir()
    except OSError:
        return False


def _check_socket_dir(folder: Path) -> None:
    """Anyone may make a folder in /tmp: only one that is ours alone is used. Raises `Refused`."""
    if folder.is_symlink():
        raise Refused(
            f"{folder} is a symbolic link; remove it, or set MUSTER_HOME to a shorter path", reason=_HOME_UNUSABLE
        )
    _check_private(folder)


def _check_private(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", reason=_HOME_UNUSABLE) from error
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is not a folder; set MUSTER_HOME to one", reason=_HOME_UNUSABLE)
    if status.st_uid != os.getuid():
        raise Refused(
            f"{path} belongs to user {status.st_uid}, not to you ({os.getuid()}); set MUSTER_HOME to your own",
            reason=_HOME_UNUSABLE,
        )
    if status.st_mode & 0o077:
        raise Refused(
            f"{path} can be entered by others (mode {stat.S_IMODE(status.st_mode):o}); run: chmod 700 {path}",
            reason=_HOME_UNUSABLE,
        )
