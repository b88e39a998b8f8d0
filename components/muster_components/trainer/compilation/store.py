"""The files of a compile cache: in a folder, with checks of owner and permissions, or in a store of fsspec."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from muster_components.trainer.regular_files import open_regular, replace_file

MAX_BYTES: Final = 2 << 30
"""Of one file."""
_KEY: Final = re.compile("[0-9a-f]{32}")


class UnusableEntry(Exception):
    """A file of the cache that must not be loaded, and why."""


def _resolve(path: str) -> Path | tuple[AbstractFileSystem, str]:
    """The path in a file system; for other URLs, the store and the name in it."""
    if "://" not in path:
        return Path(path)
    files, name = fsspec.core.url_to_fs(path)
    return Path(name) if isinstance(files, LocalFileSystem) else (files, name)


def read(path: str, forbidden: int) -> bytes | None:
    """The content; None if there is no such file. `forbidden`: bits of the mode that a file must not have.

    Raises UnusableEntry, OSError, and what the store raises.
    """
    place = _resolve(path)
    try:
        if isinstance(place, tuple):
            files, name = place
            content: bytes = files.cat_file(name, end=MAX_BYTES + 1)
        else:
            with open_regular(place) as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid not in (0, os.geteuid()) or status.st_mode & forbidden:
                    raise UnusableEntry(
                        f"must be owned by user {os.geteuid()} and writable by no other; "
                        f"got {stat.filemode(status.st_mode)} of user {status.st_uid}"
                    )
                content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise UnusableEntry(f"must have at most {MAX_BYTES:,} bytes")
    return content


def write(path: str, content: bytes) -> None:
    """Replace the file as a whole, readable by this user only. Raises UnusableEntry if `read` would refuse its size,
    OSError, and what the store raises."""
    if len(content) > MAX_BYTES:
        raise UnusableEntry(f"must have at most {MAX_BYTES:,} bytes; got {len(content):,}")
    place = _resolve(path)
    if isinstance(place, tuple):
        files, name = place
        files.makedirs(files._parent(name), exist_ok=True)
        files.pipe_file(name, content)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, content, mode=0o600, durable=True)


def remove_oldest(location: str, keep: str, max_bytes: int) -> list[str]:
    """Remove entries below `location` until the rest, `keep` among them, has at most `max_bytes`; returns their paths.

    First those whose last use is longest ago; in a store, whose files have no time of use, those written first. Other
    files than entries, `<key>/<part>`, are left alone. Raises OSError, and what the store raises.
    """
    place, kept = _resolve(location), _resolve(keep)
    kept_name = str(kept if isinstance(kept, Path) else kept[1])
    entries = list(_local_entries(place) if isinstance(place, Path) else _stored_entries(*place))
    total = sum(size for _, size, _ in entries)
    removed = []
    for _, size, name in sorted(entries):
        if total <= max_bytes:
            break
        if name == kept_name:
            continue
        with contextlib.suppress(FileNotFoundError):  # another job removed it
            if isinstance(place, Path):
                Path(name).unlink()
            else:
                place[0].rm_file(name)
        removed.append(name)
        total -= size
    return removed


def mark_used(path: str) -> None:
    """Set an entry's time of use to now, in a folder and if this user may."""
    place = _resolve(path)
    if isinstance(place, Path):
        with contextlib.suppress(OSError):
            os.utime(place)


def _local_entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Time of use, size and path of each entry, and of files whose writer was killed."""
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if _KEY.fullmatch(path.parent.name) and stat.S_ISREG(status.st_mode):
                yield status.st_mtime, status.st_size, str(path)


def _stored_entries(files: AbstractFileSystem, folder: str) -> Iterator[tuple[float, int, str]]:
    """Time of writing, size and name of each entry."""
    for name, status in files.find(folder, maxdepth=2, detail=True).items():
        if _KEY.fullmatch(name.rsplit("/", 2)[-2]):
            yield files.modified(name).timestamp(), status["size"], name
