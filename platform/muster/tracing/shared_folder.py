"""Safe access to a folder that untrusted programs write to, such as a job's run folder.

A compromised trainer runs under the collector's user id and can replace any file or folder here by a symbolic link, a
FIFO or a hard link at any moment. So each component of a path is opened relative to its parent (openat) without
following links, only regular files with one link are opened, and code that needs a file twice keeps it open. A swapped
file causes an OSError, never an access to another place.
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
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO must not block
_TEMPORARY_DIGITS = 16


class IrregularFile(OSError):
    """Not a regular file with a single link; `strerror` names the type."""


class SharedFolder:
    """The folder `path/below`. Symbolic links are followed in `path` only, not in `below` or in names.

    Names are relative paths; ValueError for a name with `..`. All methods raise OSError as the functions of `os` do,
    and NotADirectoryError for a symbolic link in place of a folder.
    """

    def __init__(self, path: Path, below: str = "") -> None:
        self.path = path / below
        self._trusted_root = path
        self._below = _parts(below) if below not in ("", ".") else ()

    def open(self, name: str) -> IO[bytes]:
        """Open for reading. Raises IrregularFile for a link, a FIFO, a folder, or a file with several hard links."""
        return self._open_file(name, os.O_RDONLY, "rb")

    def open_to_append(self, name: str) -> IO[bytes]:
        """Open for appending; creates a missing file. Raises IrregularFile as `open` does."""
        return self._open_file(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content. Raises InvalidTrace if it is larger than `max_bytes`."""
        with self.open(name) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise InvalidTrace(f"{self.path / name}: must have at most {max_bytes} bytes")
        return content

    @contextmanager
    def new_file(self, name: str, *, owner: str) -> Iterator[NewFile]:
        """A new file under a random temporary name; `publish` renames it, else it is removed at the end of the block.

        `is_temporary_of` recognises the temporary files of a killed `owner`.
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
                    if not new.published:  # free the space for the next attempt
                        with suppress(FileNotFoundError):
                            os.unlink(temporary, dir_fd=folder)

    def write(self, name: str, content: bytes, *, owner: str) -> None:
        """Replace a file atomically and durably (fsync)."""
        with self.new_file(name, owner=owner) as new:
            new.file.write(content)
            new.publish()

    def file_names(self, folder: str) -> list[str]:
        """The entries of a folder that are not folders, sorted; empty if the folder is missing."""
        return [name for name, is_folder in self._entries(folder) if not is_folder]

    def folder_names(self, folder: str) -> list[str]:
        """The folders in a folder, sorted; empty if the folder is missing."""
        return [name for name, is_folder in self._entries(folder) if is_folder]

    def stat(self, name: str) -> os.stat_result:
        """Status of the file, of a symbolic link that of the link itself."""
        *folders, last = _parts(name)
        with self._open_folder(folders) as folder:
            return os.stat(last, dir_fd=folder, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether the name exists, also as a dangling symbolic link."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, folder: str, mode: int | None = None) -> None:
        """Create a folder and its missing parents; sets `mode` if this process's user owns the folder."""
        self._trusted_root.mkdir(parents=True, exist_ok=True)
        with self._open_folder(_parts(folder), create=True) as handle:
            if mode is not None and os.fstat(handle).st_uid == os.geteuid():
                os.fchmod(handle, mode)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target; a symbolic link itself is renamed."""
        (*old_folders, old), (*new_folders, new) = _parts(source), _parts(target)
        with self._open_folder(old_folders) as old_folder, self._open_folder(new_folders) as new_folder:
            os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)

    def remove(self, name: str) -> None:
        """Remove a file or a symbolic link itself; no error if it is missing."""
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
    """An unpublished file, open for reading and writing."""

    file: IO[bytes]
    _folder: int
    _temporary: str
    _name: str
    published: bool = False

    def publish(self) -> None:
        """Rename to the final name, durably (fsync of file and folder). The file remains open."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.published = True
        os.fsync(self._folder)


def is_temporary_of(owner: str, name: str) -> bool:
    """Whether this is the name of a temporary file of `owner`."""
    digits = name.removeprefix(f".{owner}.").removesuffix(".tmp")
    return name == f".{owner}.{digits}.tmp" and len(digits) == _TEMPORARY_DIGITS and digits.isalnum()


def open_regular(path: Path) -> IO[bytes]:
    """Open a file that the user named, following symbolic links. Raises IrregularFile for a FIFO, a folder or a device,
    without blocking."""
    return require_regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path, "rb", single_link=False)


def require_regular(handle: int, path: Path, mode: str, *, single_link: bool) -> IO[bytes]:
    """The open file if it is regular. Else closes it and raises IrregularFile."""
    status = os.fstat(handle)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and not (single_link and status.st_nlink > 1):
        return cast(IO[bytes], os.fdopen(handle, mode))
    os.close(handle)
    file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "a special file")
    raise _irregular(path, f"a file with {status.st_nlink} hard links" if is_regular else file_type)


_FILE_TYPES = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
               stat.S_IFBLK: "a device"}  # fmt: skip


def _irregular(path: Path, file_type: str) -> IrregularFile:
    return IrregularFile(errno.EINVAL, f"must be a regular file; got {file_type}", str(path))


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or ".." in parts or name.startswith("/"):
        raise ValueError(f"must be a relative path without '..'; got {name!r}")
    return parts
