"""Traces within zip and tar archives. A member has the path `archive.zip/member`; nothing is unpacked to disk.

Archives are not trusted: the number of members and what is read of one are limited, and names that lead out of the
archive are not used.
"""

from __future__ import annotations

import errno
import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, cast

from muster.errors import InvalidTrace
from muster.tracing.shared_folder import open_regular

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
MAX_MEMBERS = 1024
"""Of an archive; in a tar archive folders and links count too."""
MAX_DIRECTORY_BYTES = 16 << 20
"""Of a zip archive: its list of members takes ten times this in memory."""
MAX_ARCHIVE_BYTES = 64 << 30
"""Uncompressed bytes of a tar archive."""
_MAX_READ_BYTES = 16 << 20
_MAX_HEADER_BLOCKS = 16 * MAX_MEMBERS
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
DAMAGED_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile)
_PROBLEMS = (*DAMAGED_ARCHIVE, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, IndexError)


def archive_members(path: Path) -> tuple[Path, ...] | None:
    """The files in an archive, at most `MAX_MEMBERS`; None if the file is no archive. Raises InvalidTrace for a damaged
    one, and OSError."""
    with open_regular(path) as file:
        kind = _kind(file)
        if kind is None:
            return None
        try:
            names = _zip_names(path, file) if kind == "zip" else _tar_names(file)
        except _PROBLEMS as error:
            raise InvalidTrace(f"{path}: damaged archive: {error}") from error
    inside = [name for name in names if not name.startswith("/") and ".." not in PurePosixPath(name).parts]
    return tuple(path / name for name in sorted(inside))


@contextmanager
def open_trace(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that the user named, or a member of an archive. Raises OSError, and InvalidTrace for a damaged
    archive."""
    archive = None if path.exists() else next((parent for parent in path.parents if parent.is_file()), None)
    with ExitStack() as opened:
        file = opened.enter_context(open_regular(archive or path))
        if archive is not None:
            try:
                file = _open_member(file, path, archive, opened)
            except _PROBLEMS as error:
                raise InvalidTrace(f"{archive}: damaged archive: {error}") from error
        yield file


def _open_member(file: IO[bytes], path: Path, archive: Path, opened: ExitStack) -> IO[bytes]:
    name = path.relative_to(archive).as_posix()
    if _kind(file) == "zip":
        _check_directory(archive, file)
        of_zip = opened.enter_context(zipfile.ZipFile(file))
        if name in of_zip.namelist():
            return opened.enter_context(of_zip.open(name))
    else:
        of_tar = opened.enter_context(tarfile.TarFile(fileobj=_bounded(file)))
        for member in islice(of_tar, MAX_MEMBERS):
            extracted = of_tar.extractfile(member) if member.isreg() and _name(member) == name else None
            if extracted is not None:
                return opened.enter_context(extracted)
    raise FileNotFoundError(errno.ENOENT, "no such file in the archive", str(path))


def _kind(file: IO[bytes]) -> str | None:
    """`zip`, `tar` or None, by the first bytes."""
    head = file.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    file.seek(0)
    if head.startswith(ZIP_MAGIC):
        return "zip"
    if head.startswith(GZIP_MAGIC):
        try:
            head = gzip.GzipFile(fileobj=file).read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
        except (OSError, EOFError):
            return None
        finally:
            file.seek(0)
    return "tar" if head[_TAR_MAGIC_AT:] == _TAR_MAGIC else None


def _zip_names(path: Path, file: IO[bytes]) -> list[str]:
    _check_directory(path, file)
    with zipfile.ZipFile(file) as archive:
        return [one.filename for one in archive.infolist() if not one.is_dir()][:MAX_MEMBERS]


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Raise InvalidTrace if the list of members is too large; zip and zip64 archives say its size at their end."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 256))
    end = file.read()
    file.seek(0)
    for mark, layout, offset in ((b"PK\x05\x06", "<L", 12), (b"PK\x06\x06", "<Q", 40)):
        at = end.rfind(mark)
        if at >= 0 and len(end) >= at + offset + 8:
            (listed,) = struct.unpack_from(layout, end, at + offset)
            if listed > MAX_DIRECTORY_BYTES and listed != 0xFFFFFFFF:
                raise InvalidTrace(f"{path}: the list of files must have at most {MAX_DIRECTORY_BYTES} bytes")


def _tar_names(file: IO[bytes]) -> list[str]:
    with tarfile.TarFile(fileobj=_bounded(file)) as archive:
        return [_name(member) for member in islice(archive, MAX_MEMBERS) if member.isreg()]


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./")


def _bounded(file: IO[bytes]) -> IO[bytes]:
    """The uncompressed tar archive in an open file."""
    compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return cast(IO[bytes], _Bounded(cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file))


class _Bounded(io.RawIOBase):
    """A file of which at most `MAX_ARCHIVE_BYTES` are read, no header above `_MAX_READ_BYTES`, and few header blocks.

    Contents are read in larger blocks, but for their ends.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._small_reads = file, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset > MAX_ARCHIVE_BYTES:
            raise tarfile.ReadError(f"must have at most {MAX_ARCHIVE_BYTES} bytes uncompressed")
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES or self._file.tell() > MAX_ARCHIVE_BYTES:
            raise tarfile.ReadError("a header is too large, or the archive is")
        self._small_reads += size <= tarfile.BLOCKSIZE
        if self._small_reads > _MAX_HEADER_BLOCKS:
            raise tarfile.ReadError("too many headers")
        return self._file.read(size)
