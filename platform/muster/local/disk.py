"""What is left on the disk of the home: when nothing more is accepted, and when logs cannot be written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from muster.errors import ClusterError
from muster.text.humanize import format_resource

MIN_FREE_BYTES = 2**20
"""With less than this free no job or queue is accepted: what the database has set aside is for those that run."""
RESERVE_BYTES = 2**20
_MIN_FREE_LOG_BYTES = 4096


def check_free_space(folder: Path) -> None:
    """Raise `ClusterError` StoreUnwritable when less than `LEAST_BYTES` are free."""
    free = _free_bytes(folder)
    if free < MIN_FREE_BYTES:
        least, left = format_resource(MIN_FREE_BYTES, "memory"), format_resource(free, "memory")
        message = f"the disk of {folder} is full: at least {least} must be free to accept anything; got {left}"
        raise ClusterError(message, reason="StoreUnwritable")


def log_fault(folder: Path) -> tuple[str, str] | None:
    """(Reason, message) of why logs in this folder cannot be written; None when they can."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return "ReadOnlyFilesystem", f"logs cannot be written: the file system of {folder} is read-only"
        if _free_bytes(folder) < _MIN_FREE_LOG_BYTES:
            return "DiskFull", f"logs cannot be written: the disk of {folder} is full; what pods print is lost"
    except OSError as error:
        return "LogsUnreachable", f"logs cannot be written: {folder}: {error.strerror}"
    return None


def reserve_space(file: Path) -> None:
    """Set disk space aside in this file for a daemon that starts on a full disk; without it where there is none."""
    with suppress(OSError):
        if _free_bytes(file.parent) < MIN_FREE_BYTES + RESERVE_BYTES:
            return
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, RESERVE_BYTES)
        finally:
            os.close(handle)


def release_space(file: Path) -> bool:
    """Give back what `reserve` has set aside. False when there was nothing, or it cannot be removed."""
    try:
        file.unlink()
    except OSError:
        return False
    return True


def _free_bytes(folder: Path) -> int:
    """Bytes that this user may still write."""
    found = os.statvfs(folder)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
