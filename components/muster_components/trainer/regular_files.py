"""Files that another program may have written: only regular ones are read, and no more than expected.

To open a FIFO would block until a program writes to it; a symbolic link to /dev/zero has no end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, following symbolic links. Raises OSError for a FIFO, a folder or a device, which could
    block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "must be a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises OSError as `open_regular` does, ValueError if it is larger than `max_bytes`."""
    with open_regular(path) as stream:
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
