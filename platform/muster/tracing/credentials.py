"""Secrets of the collector, from files mounted only in its container: the token, and credentials of the store.

They are passed neither in the initial environment nor in arguments, since `/proc/PID/environ` and `/proc/PID/cmdline`
show those to every process of the same user.
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
    """The content of the file, stripped. Raises OSError, ValueError."""
    with path.open("rb") as file:
        return file.read(MAX_SECRET_BYTES).decode().strip()


def load_store_credentials(folder: Path) -> tuple[str, ...]:
    """Set a variable for each file whose name is a valid variable name, as `envFrom` does; returns the sorted names.

    fsspec's backends read credentials from the environment. Variables set after the start of the process do not appear
    in `/proc/PID/environ`. A Secret that does not exist is an empty or missing folder. Raises OSError, ValueError.
    """
    with suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(folder) if _VARIABLE_NAME.fullmatch(name))
        for name in names:
            with (folder / name).open("rb") as file:
                os.environ[name] = file.read(MAX_SECRET_BYTES).decode()
        return tuple(names)
    return ()


def disable_process_inspection() -> None:
    """Deny other processes, also of the same user, access to this process's memory, environment and open files.

    Linux only; no effect elsewhere.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
