"""Reads a folder that an untrusted program writes: no symbolic link below it is followed, and no read is unbounded.

Everything is opened relative to its folder's descriptor, so that a folder which is replaced by a link while it is read
leads nowhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class NameBudget:
    """How many names may still be listed."""

    left: int


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder with its regular files and folders; links, FIFOs and devices are left out. `path` is relative to
    the folder that is searched."""

    handle: int
    path: str
    files: frozenset[str]
    folders: frozenset[str]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def stat(self, name: str) -> os.stat_result | None:
        """That of a regular file in it; None if there is none."""
        if name not in self.files:
            return None
        with suppress(OSError):
            found = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
            return found if stat.S_ISREG(found.st_mode) else None
        return None

    def read(self, name: str, most: int, *, from_end: bool = False) -> bytes:
        """The first, or last, bytes of a regular file, at most so many; none if it cannot be read."""
        try:
            handle = os.open(name, _OPEN_FILE, dir_fd=self.handle)
        except OSError:
            return b""
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return b""
            return os.pread(handle, most, max(0, found.st_size - most) if from_end else 0)
        except OSError:
            return b""
        finally:
            os.close(handle)


@contextmanager
def open_folder(name: str, budget: NameBudget, parent: Folder | None = None) -> Iterator[Folder | None]:
    """A folder below `parent`, or the first one, which may be a link. None if it cannot be read or has more names than
    the budget has left."""
    try:
        flags = _OPEN_FOLDER | (os.O_NOFOLLOW if parent is not None else 0)
        handle = os.open(name, flags, dir_fd=None if parent is None else parent.handle)
    except OSError:
        yield None
        return
    try:
        path = name if parent is not None and not parent.path else f"{parent.path}/{name}" if parent is not None else ""
        yield _list(handle, path, budget)
    finally:
        os.close(handle)


def _list(handle: int, path: str, budget: NameBudget) -> Folder | None:
    files, folders = set(), set()
    try:
        with os.scandir(handle) as entries:
            for entry in entries:
                if budget.left <= 0:
                    return None
                budget.left -= 1
                if entry.is_dir(follow_symlinks=False):
                    folders.add(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.add(entry.name)
    except OSError:
        return None
    return Folder(handle, path, frozenset(files), frozenset(folders))
