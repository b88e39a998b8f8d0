"""The daemon's folder (MUSTER_HOME): its paths, who may enter it, and its free disk space.

muster.db             the database
daemon.lock           locked by the running daemon; contains its pid
daemon.sock           the API; if its path is too long, daemon.sock.path contains another one
daemon.stopped        exists after a deliberate stop
reserve               disk space that a daemon releases if it starts on a full disk
omitted-variables.json         names of the variables that jobs did not get, as last reported to the user
daemon.log            the daemon's log; two older files are kept
pods/<uid>/<pod>/     files shared by a shim and the daemon (see shim.py); removed with the job
runs/<namespace>-<job>-<uid8>/    the run folder; removed by its user only
submissions/<id>/     code of a run, until its job is accepted; then it is in the run folder
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.errors import ClusterError, DaemonError, DaemonUnavailable, InvalidSpec, Refused
from muster.text import format_resource

_HOME_UNUSABLE = "HomeUnusable"
_MIN_FREE_BYTES = 2**20  # with less no object is accepted: the database's reserve is for running jobs
_RESERVE_BYTES = 2**20
_MIN_FREE_LOG_BYTES = 4096
_MAX_SOCKET_PATH_BYTES = 107  # sun_path has 108 with its final zero byte


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one absolute folder."""

    path: Path

    @property
    def database(self) -> Path:
        return self.path / "muster.db"

    @property
    def reserve_file(self) -> Path:
        """Reserved disk space, for a daemon that starts on a full disk."""
        return self.path / "reserve"

    @property
    def lock(self) -> Path:
        return self.path / "daemon.lock"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"

    @property
    def omitted_variables(self) -> Path:
        """Names of the variables that jobs did not get, as last reported to the user."""
        return self.path / "omitted-variables.json"

    @property
    def socket_pointer(self) -> Path:
        """Contains the socket's path if that is not in this folder."""
        return self.path / "daemon.sock.path"

    @property
    def stopped_marker(self) -> Path:
        """Exists from a deliberate stop until the next start: only `up`, a submit or an apply starts the daemon."""
        return self.path / "daemon.stopped"

    @property
    def runs_dir(self) -> Path:
        return self.path / "runs"

    def run_dir(self, namespace: str, job: str, uid: str) -> Path:
        """The run folder of one job; that of an index of an array is inside the array's."""
        uid, _, index = uid.partition("/")
        folder = self.runs_dir / f"{namespace}-{job.removesuffix(f'-{index}') if index else job}-{uid[:8]}"
        return folder / "indices" / index if index else folder

    @property
    def submissions_dir(self) -> Path:
        """The folder of what `muster run` has copied for jobs that are not accepted yet."""
        return self.path / "submissions"

    @property
    def pods_dir(self) -> Path:
        """The folder of the files that shims and the daemon share."""
        return self.path / "pods"

    def job_pods_dir(self, uid: str) -> Path:
        return self.pods_dir / uid

    def pod_dir(self, uid: str, role: str, index: int, attempt: int) -> Path:
        return self.job_pods_dir(uid) / f"{role}-{index}.attempt-{attempt}"

    def is_locked(self) -> bool:
        """Whether a daemon runs for this home."""
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
        """The socket's path. Raises `Refused` if it is in a folder outside the home that other users can enter, and
        `DaemonUnavailable` if the home was removed since it was opened."""
        direct = self.path / "daemon.sock"
        if _fits_socket_path(direct):
            return direct
        try:
            elsewhere = Path(self.socket_pointer.read_text().strip())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DaemonUnavailable(f"{self.socket_pointer} was removed") from error
        _check_socket_dir(elsewhere.parent)
        return elsewhere


def home_path(given: str | os.PathLike[str] | None = None) -> Path:
    """`given`, else $MUSTER_HOME, else ~/.muster; absolute, and not created here. Raises `InvalidSpec` if MUSTER_HOME
    is relative: it would be another folder, with other jobs, in each directory."""
    path = given if given is not None else os.environ.get("MUSTER_HOME") or "~/.muster"
    if given is None and not os.path.isabs(os.path.expanduser(path)):
        message = f"MUSTER_HOME must be an absolute path, or begin with ~; got {path!r}"
        raise InvalidSpec(message, field="MUSTER_HOME", reason="Usage")
    return Path(os.path.abspath(os.path.expanduser(path)))


def open_home(given: str | os.PathLike[str] | None = None) -> Home:
    """Create the folder if needed and check that only its user can enter it.

    Raises `Refused` if it belongs to another user, others can enter it, or it cannot be created; `DaemonError` if no
    socket path is short enough.
    """
    path = home_path(given)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"MUSTER_HOME {path}: cannot be created: {error.strerror}; set MUSTER_HOME to a folder you may write to",
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
            raise DaemonError(f"the socket's folder {folder} cannot be created: {error.strerror}") from error
    return home


def _fits_socket_path(path: Path) -> bool:
    return len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES


def _fallback_socket_dir(home: Path) -> Path:
    """A short path of a folder for this home only."""
    name = f"muster-{os.getuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for base in (runtime, "/tmp"):
        if base and os.path.isdir(base) and _fits_socket_path(Path(base) / name / "daemon.sock"):
            return Path(base) / name
    raise DaemonError(f"MUSTER_HOME {home}: no socket path has less than 108 bytes; set a shorter MUSTER_HOME")


def _points_to_directory(pointer: Path) -> bool:
    try:
        return Path(pointer.read_text().strip()).parent.is_dir()
    except OSError:
        return False


def _check_socket_dir(folder: Path) -> None:
    """Any user may create a folder in /tmp: raises `Refused` unless only this user can enter it."""
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
        raise Refused(f"{path} is not a folder; set MUSTER_HOME to a folder", reason=_HOME_UNUSABLE)
    if status.st_uid != os.getuid():
        raise Refused(
            f"{path} belongs to user {status.st_uid}; set MUSTER_HOME to a folder of your own (user {os.getuid()})",
            reason=_HOME_UNUSABLE,
        )
    if status.st_mode & 0o077:
        raise Refused(
            f"{path} can be entered by other users (mode {stat.S_IMODE(status.st_mode):o}); run: chmod 700 {path}",
            reason=_HOME_UNUSABLE,
        )


def check_writable(home: Path) -> None:
    """Raise `Refused` if this user may not create files in the home."""
    if not os.access(home, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(home).f_flag & os.ST_RDONLY
        cause = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
        raise Refused(
            f"MUSTER_HOME {home}: cannot be written: {cause}; set MUSTER_HOME to a folder you may write to",
            reason=_HOME_UNUSABLE,
        )


def check_free_space(folder: Path) -> None:
    """Raise `ClusterError` StoreUnwritable if less than `_MIN_FREE_BYTES` are free."""
    free = _free_bytes(folder)
    if free < _MIN_FREE_BYTES:
        needed, available = format_resource(_MIN_FREE_BYTES, "memory"), format_resource(free, "memory")
        message = f"the disk of {folder} is full: at least {needed} must be free to accept objects; got {available}"
        raise ClusterError(message, reason="StoreUnwritable")


def log_fault(folder: Path) -> tuple[str, str] | None:
    """(reason, message) if logs in this folder cannot be written, else None."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return "ReadOnlyFilesystem", f"logs cannot be written: the file system of {folder} is read-only"
        if _free_bytes(folder) < _MIN_FREE_LOG_BYTES:
            return "DiskFull", f"logs cannot be written: the disk of {folder} is full; pod output is lost"
    except OSError as error:
        return "LogsUnreachable", f"logs cannot be written: {folder}: {error.strerror}"
    return None


def reserve_space(file: Path) -> None:
    """Reserve disk space in this file, for a daemon that starts on a full disk, if enough is free."""
    with suppress(OSError):
        if _free_bytes(file.parent) < _MIN_FREE_BYTES + _RESERVE_BYTES:
            return
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, _RESERVE_BYTES)
        finally:
            os.close(handle)


def release_space(file: Path) -> bool:
    """Release the space of `reserve_space`. False if there was none or it cannot be removed."""
    try:
        file.unlink()
    except OSError:
        return False
    return True


def _free_bytes(folder: Path) -> int:
    """Free bytes for this user."""
    stats = os.statvfs(folder)
    return stats.f_frsize * (stats.f_bfree if os.geteuid() == 0 else stats.f_bavail)
