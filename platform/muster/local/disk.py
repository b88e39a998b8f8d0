"""Free disk space of the home: checks before objects are accepted and for logs, and a reserve for restarts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from muster.errors import ClusterError
from muster.text.humanize import format_resource

MIN_FREE_BYTES = 2**20
"""With less free space no job or queue is accepted: the database's reserve is for running jobs."""
RESERVE_BYTES = 2**20
_MIN_FREE_LOG_BYTES = 4096


def check_free_space(folder: Path) -> None:
    """Raise `ClusterError` StoreUnwritable if less than `MIN_FREE_BYTES` are free."""
    free = _free_bytes(folder)
    if free < MIN_FREE_BYTES:
        needed, available = format_resource(MIN_FREE_BYTES, "memory"), format_resource(free, "memory")
        message = f"the disk of {folder} is full: at least {needed} must be free to accept objects; got {available}"
        raise ClusterError(message, reason="StoreUnwritable")


def log_fault(folder: Path) -> tuple[str, str] | None:
    """(reason, message) if logs in this folder cannot be written, else None."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return "ReadOnlyFilesystem", f"logs cannot be written: the file system of {folder} is read-only"
        if _free_bytes(folder) < _MIN_FREE_LOG_BYTES:
            return "DiskFull", f"logs cannot be written: the disk of {folder} is full; pod output is lost"
    except OSError as error:
        return "LogsUnreachable", f"logs cannot be written: {folder}: {error.strerror}"
    return None


def reserve_space(file: Path) -> None:
    """Reserve disk space in this file for a daemon that starts on a full disk, if there is enough."""
    with suppress(OSError):
        if _free_bytes(file.parent) < MIN_FREE_BYTES + RESERVE_BYTES:
            return
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, RESERVE_BYTES)
        finally:
            os.close(handle)


def release_space(file: Path) -> bool:
    """Release the space of `reserve_space`. False if there was none or it cannot be removed."""
    try:
        file.unlink()
    except OSError:
        return False
    return True


def _free_bytes(folder: Path) -> int:
    """Free bytes for this user."""
    stats = os.statvfs(folder)
    return stats.f_frsize * (stats.f_bfree if os.geteuid() == 0 else stats.f_bavail)
