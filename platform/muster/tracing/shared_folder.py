"""A folder that other programs write to, as a job's run folder, opened so that no program can redirect the access.

A trainer that was taken over runs under the collector's user id and can replace any file or folder here by a symbolic
link, a FIFO or a hard link, at any moment. So each component of a name is opened from the folder before it (openat) and
never followed if it is a link; only regular files with one name are opened; and whoever needs a file twice keeps it
open. What a swap causes is an OSError, never an access to another place.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from muster.errors import InvalidTrace

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO must not wait for its other end
_TEMPORARY_DIGITS = 16


class IrregularFile(OSError):
    """What is there is not a regular file with one name; `strerror` says what it is."""


class SharedFolder:
    """The folder `path/below`. Links in `path` are followed, none in `below` or in a name.

    Names are relative and separated by `/`; ValueError for one with `..`. All methods raise OSError as the functions of
    `os` do, and NotADirectoryError where a link stands for a folder.
    """

    def __init__(self, path: Path, below: str = "") -> None:
        self.path = path / below
        self._trusted_root = path
        self._below = _parts(below) if below not in ("", ".") else ()

    def open(self, name: str) -> IO[bytes]:
        """Open for reading. IrregularFile for a link, a FIFO, a folder, or a file with a second name (hard link)."""
        return self._open_file(name, os.O_RDONLY, "rb")

    def open_to_append(self, name: str) -> IO[bytes]:
        """Open for appending; an empty file is made where there is none. IrregularFile as `open` has it."""
        return self._open_file(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content. InvalidTrace if it has more bytes."""
        with self.open(name) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise InvalidTrace(f"{self.path / name}: has more than {max_bytes} bytes")
        return content

    @contextmanager
    def new_file(self, name: str, *, owner: str) -> Iterator[NewFile]:
        """A file to be written, which gets its name by `publish`; else it is removed at the end of the block.

        Until then it has a name that nobody can foresee; `temporary_of` finds those that a killed `owner` left.
        """
        *folders, last = _parts(name)
        temporary = f".{owner}.{secrets.token_hex(_TEMPORARY_DIGITS // 2)}.tmp"
        with self._open_folder(folders) as folder:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder)
            with os.fdopen(handle, "w+b") as file:
                new = NewFile(file, folder, temporary, last)
                try:
                    yield new
                finally:
                    if not new.published:  # on a full disk it must not go on taking space that the next try needs
                        with suppress(FileNotFoundError):
                            os.unlink(temporary, dir_fd=folder)

    def write(self, name: str, content: bytes, *, owner: str) -> None:
        """Replace a file by one with this content: whole or not at all, also when the machine loses power."""
        with self.new_file(name, owner=owner) as new:
            new.file.write(content)
            new.publish()

    def file_names(self, folder: str) -> list[str]:
        """What is in a folder, sorted, but for folders; nothing if there is no such folder."""
        return [name for name, is_folder in self._entries(folder) if not is_folder]

    def folder_names(self, folder: str) -> list[str]:
        """The folders in a folder, sorted; nothing if there is no such folder."""
        return [name for name, is_folder in self._entries(folder) if is_folder]

    def stat(self, name: str) -> os.stat_result:
        """Of a link, that of the link itself."""
        *folders, last = _parts(name)
        with self._open_folder(folders) as folder:
            return os.stat(last, dir_fd=folder, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether anything has this name, be it a link that leads nowhere."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, folder: str, mode: int | None = None) -> None:
        """Make a folder and those above it, as far as they are missing; `mode` is set if the folder is ours."""
        self._trusted_root.mkdir(parents=True, exist_ok=True)
        with self._open_folder(_parts(folder), create=True) as handle:
            if mode is not None and os.fstat(handle).st_uid == os.geteuid():
                os.fchmod(handle, mode)

    def rename(self, source: str, target: str) -> None:
        """Rename, and replace the target; a link is moved itself."""
        (*before, old), (*after, new) = _parts(source), _parts(target)
        with self._open_folder(before) as here, self._open_folder(after) as there:
            os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)

    def remove(self, name: str) -> None:
        """Remove a file, a link itself, or nothing if there is none."""
        *folders, last = _parts(name)
        with suppress(FileNotFoundError), self._open_folder(folders) as folder:
            os.unlink(last, dir_fd=folder)

    def _open_file(self, name: str, flags: int, mode: str) -> IO[bytes]:
        *folders, last = _parts(name)
        with self._open_folder(folders) as folder:
            try:
                handle = os.open(last, flags | _FILE, 0o666, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _irregular(self.path / name, "a symbolic link") from error
                raise
        return require_regular(handle, self.path / name, mode, single_link=True)

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        try:
            with self._open_folder(_parts(folder)) as handle, os.scandir(handle) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except FileNotFoundError:
            return []

    @contextmanager
    def _open_folder(self, folders: Sequence[str], *, create: bool = False) -> Iterator[int]:
        handle = os.open(self._trusted_root, _FOLDER)
        try:
            for part in (*self._below, *folders):
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


@dataclass(slots=True)
class NewFile:
    """A file under construction, open for reading and writing."""

    file: IO[bytes]
    _folder: int
    _temporary: str
    _name: str
    published: bool = False

    def publish(self) -> None:
        """Give it its name; content and name then survive a power cut. It stays open."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.published = True
        os.fsync(self._folder)


def is_temporary_of(owner: str, name: str) -> bool:
    """Whether this is the name of a file that `owner` has not published."""
    digits = name.removeprefix(f".{owner}.").removesuffix(".tmp")
    return name == f".{owner}.{digits}.tmp" and len(digits) == _TEMPORARY_DIGITS and digits.isalnum()


def open_regular(path: Path) -> IO[bytes]:
    """Open a file that the user named for reading, through links too. IrregularFile for a FIFO, a folder or a device:
    nothing is waited for."""
    return require_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path, "rb", single_link=False)


def require_regular(handle: int, path: Path, mode: str, *, single_link: bool) -> IO[bytes]:
    """The open file, if it is a regular one; else it is closed. IrregularFile."""
    about = os.fstat(handle)
    is_regular = stat.S_ISREG(about.st_mode)
    if is_regular and not (single_link and about.st_nlink > 1):
        return cast(IO[bytes], os.fdopen(handle, mode))
    os.close(handle)
    kind = f"a file with {about.st_nlink} hard links" if is_regular else _KINDS.get(stat.S_IFMT(about.st_mode), "odd")
    raise _irregular(path, kind)


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
          stat.S_IFBLK: "a device"}  # fmt: skip


def _irregular(path: Path, what: str) -> IrregularFile:
    return IrregularFile(errno.EINVAL, f"is {what}; must be a regular file", str(path))


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or ".." in parts or name.startswith("/"):
        raise ValueError(f"must be a relative path without '..'; got {name!r}")
    return parts
