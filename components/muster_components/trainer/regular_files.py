"""Files that other programs read and may have written: only regular ones are read, and no more than expected; a file
is replaced as a whole, and a line is appended as a whole.

To open a FIFO would block until a program writes to it; a symbolic link to /dev/zero has no end.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final


def open_regular(path: Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a file for reading. Raises OSError for a FIFO, a folder or a device, which could block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "must be a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """The content of a file. Raises OSError as `open_regular` does, ValueError if it is larger than `max_bytes`."""
    with open_regular(path, follow_links=follow_links) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path.name}: must have at most {max_bytes:,} bytes; it has more")
    return content


def read_json(path: Path, max_bytes: int) -> Any:
    """The value in a file. Raises OSError and ValueError as `read_regular` does, ValueError if it is no JSON."""
    try:
        return json.loads(read_regular(path, max_bytes))
    except RecursionError as error:
        raise ValueError(f"{path.name}: lists and objects are nested too deeply") from error


_encode: Final = json.JSONEncoder(allow_nan=False).encode


def encode_line(value: Mapping[str, object]) -> bytes:
    """One line of JSON; NaN and infinities become null."""
    try:
        return f"{_encode(value)}\n".encode()
    except ValueError:
        finite = {k: None if isinstance(v, float) and not -1e308 <= v <= 1e308 else v for k, v in value.items()}
        return f"{_encode(finite)}\n".encode()


def replace_file(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file atomically, `durable` with an fsync. Raises OSError.

    The temporary name is random, since pods may share the folder and have equal process ids.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append in one write, or leave the file unchanged. Raises OSError, without blocking for a FIFO without reader,
    and for a symbolic link."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
    try:
        before = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
        except OSError:
            os.ftruncate(handle, before)
            raise
        if written < len(line):
            os.ftruncate(handle, before)
            raise OSError(errno.ENOSPC, "no space left on device")
    finally:
        os.close(handle)
