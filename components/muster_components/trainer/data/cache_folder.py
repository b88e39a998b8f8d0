"""The folder of cached tokens and compiled code."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from muster_components.trainer.errors import InputError


def token_cache_dir(environ: Mapping[str, str]) -> Path:
    """$MUSTER_CACHE_DIR/tokens, or the user's cache folder."""
    return cache_root(environ) / "tokens"


def cache_root(environ: Mapping[str, str]) -> Path:
    """The cache folder for tokens and compiled code. Raises InputError if it would be a folder in /tmp that other users
    can access, since compiled code is loaded from it."""
    chosen = environ.get("MUSTER_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "muster"
    try:
        return Path.home() / ".cache" / "muster"
    except RuntimeError:  # a user without home folder, as in containers
        folder = Path(tempfile.gettempdir()) / f"muster-{os.getuid()}"
        _ensure_private(folder)
        return folder


def _ensure_private(folder: Path) -> None:
    """Create the folder, or check that only this user can access it. Raises InputError."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; set MUSTER_CACHE_DIR to a folder you may write to") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(
            f"{folder} must be a folder of user {os.getuid()} with mode 700, and no symbolic link; got mode"
            f" {stat.filemode(status.st_mode)} of user {status.st_uid}; remove it or set MUSTER_CACHE_DIR"
        )
