"""The files of a folder as one archive, and back: what Inductor and Triton keep of compiled code.

Both look for files by a digest of their source, options and versions, below a folder that can be anywhere. So a process
that finds the files of another one compiles nothing: neither C++ nor Triton kernels, nor their launchers. But Triton's
JSON files name the files of a kernel by their paths.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from muster_components.trainer.regular_files import replace_file

_FOLDER: Final = b"<folder of compiled code>"
"""In archived JSON files, in place of the folder."""


MAX_FILES: Final = 200_000
MAX_FILE_BYTES: Final = 1 << 30
MAX_UNPACKED_BYTES: Final = 8 << 30
"""Of all files; an archive has at most 2 GiB, and compiled code compresses to about a third."""


_ENTRY: Final = b"PK\x01\x02"
"""Begins each entry of the directory. `zipfile` reads the whole directory, which may be as large as the archive."""


class UnusableArchive(Exception):
    """An archive that must not be unpacked, and why."""


def pack(folder: Path) -> bytes:
    """All files below the folder, without locks and files that are being written. Raises OSError."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix not in (".lock", ".tmp"):
                # Without times: the same files make the same archive.
                name = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                content = path.read_bytes()
                if path.suffix == ".json":
                    content = content.replace(bytes(folder), _FOLDER)
                archive.writestr(name, content, zipfile.ZIP_DEFLATED, compresslevel=1)
    return packed.getvalue()


def unpack(content: bytes, folder: Path) -> int:
    """Write the files that the folder lacks, each as a whole, readable by this user only; returns their number. Raises
    UnusableArchive and OSError."""
    written, files = 0, content.count(_ENTRY)
    if files > MAX_FILES:
        raise UnusableArchive(f"it must have at most {MAX_FILES:,} files; got {files:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            _check_sizes(archive)
            for name in names:
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise UnusableArchive(f"names in it must be below its folder; got {name!r}")
            for name in dict.fromkeys(names):
                path = folder / name
                if not path.exists():
                    file = archive.read(name)
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    content = file.replace(_FOLDER, bytes(folder)) if path.suffix == ".json" else file
                    replace_file(path, content, mode=0o600)
                    written += 1
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UnusableArchive(f"it cannot be unpacked: {error}") from error
    return written


def _check_sizes(archive: zipfile.ZipFile) -> None:
    """Raises UnusableArchive before anything is unpacked. A file that has more bytes than it claims is cut by zipfile,
    and its checksum is then wrong."""
    files = archive.infolist()
    largest, total = max((file.file_size for file in files), default=0), sum(file.file_size for file in files)
    if largest > MAX_FILE_BYTES or total > MAX_UNPACKED_BYTES:
        raise UnusableArchive(
            f"it must unpack to files of at most {MAX_FILE_BYTES:,} bytes, {MAX_UNPACKED_BYTES:,} bytes together; got "
            f"{largest:,} and {total:,} bytes"
        )
