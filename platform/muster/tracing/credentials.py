"""Secrets of the collector, from files that are mounted in its container alone: the token, and keys of the store.

They are in no variable that the process is started with, and in no argument, since `/proc/PID/environ` and
`/proc/PID/cmdline` show those to every process of the same user.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

MAX_SECRET_BYTES = 1 << 20  # of a Secret
_PR_SET_DUMPABLE = 4
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_token(path: Path) -> str:
    """The token in a file. Raises OSError, ValueError."""
    with path.open("rb") as file:
        return file.read(MAX_SECRET_BYTES).decode().strip()


def load_store_credentials(folder: Path) -> tuple[str, ...]:
    """Set a variable for each file whose name may be one, as `envFrom` does; their names, sorted.

    Libraries of stores look there. What a process sets after its start is in its memory alone. A Secret that does not
    exist is an empty folder, or none. Raises OSError, ValueError.
    """
    with suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(folder) if _VARIABLE_NAME.fullmatch(name))
        for name in names:
            with (folder / name).open("rb") as file:
                os.environ[name] = file.read(MAX_SECRET_BYTES).decode()
        return tuple(names)
    return ()


def disable_process_inspection() -> None:
    """From here on no other process, of the same user either, may read this one's memory, variables or open files.

    Linux only; elsewhere nothing happens.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
