"""The folder in which a launcher keeps files of its ranks while they run: errors, stacks, and the socket for reports.

It is removed at the end. What a killed launcher left, the next one on this machine removes: folders whose lock is free.
The launcher and its ranks hold it, and the system releases it when the last of them has ended, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "muster-launch-"
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """`path` exists while `lock`, a file descriptor, is open in this process or in one that inherited it."""

    path: Path
    lock: int


@contextmanager
def scratch_folder() -> Iterator[ScratchFolder | None]:
    """A new folder; None if it cannot be created (full disk). Removes those of launchers that were killed."""
    remove_left_folders(Path(tempfile.gettempdir()))
    folder = _create()
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
            os.close(folder.lock)


def remove_left_folders(parent: Path) -> None:
    """Remove folders of this user whose lock is free. One without a lock stays: it is being created, or another
    program's."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_left(parent / name)


def _create() -> ScratchFolder | None:
    path: Path | None = None
    try:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / f".{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: then it is never removed by another launcher
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(path / f".{_LOCK}", path / _LOCK)  # held before it can be seen
        except BaseException:
            os.close(lock)
            raise
    except OSError:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        return None
    return ScratchFolder(path, lock)


def _remove_if_left(path: Path) -> None:
    """Raises OSError, such as BlockingIOError for a lock that is held."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(lock).st_mode):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
