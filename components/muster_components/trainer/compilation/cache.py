"""The compiled code of a run, for restarts and for other replicas: torch's cache artifacts in files.

    FOLDER/<key>/<part>          one line of JSON (key, part, bytes, sha256), then the artifacts

The key is a digest of everything that decides which code is compiled. Ranks that compile the same code have the same
part: the first of them writes it, all of them load it before they compile. A file is replaced as a whole.

Artifacts are executable code. The digest detects damage, not forgery: who can write to the folder can run code in the
job (docs/security.md). On a file system, a file of another user, or one that others can write, is not loaded. In the
run folder the group may write: Kubernetes gives volumes with fsGroup that permission at each mount.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fsspec
import torch
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from muster_components.trainer.checkpoint_manifest import open_regular

MAX_BYTES: Final = 2 << 30


class UnusableEntry(Exception):
    """A file of the cache that must not be loaded, and why."""


@dataclass(frozen=True, slots=True)
class CompileCache:
    """This rank's entry in the cache at `location`: a folder, or a URL of fsspec.

    `writes`: whether this rank saves it. `warn` gets a line for each entry that is not used, and for failed writes.
    `in_run_folder`: who may write it is trusted as with checkpoints.
    """

    location: str
    key: Mapping[str, object]
    part: str
    writes: bool
    warn: Callable[[str], None]
    in_run_folder: bool = False

    @property
    def path(self) -> str:
        """Of this rank's entry."""
        return "/".join((self.location.rstrip("/"), _digest(_canonical(self.key))[:32], self.part))

    def load(self) -> bool:
        """Give torch the artifacts; False if there are none that can be used."""
        try:
            content = _read(self.path, stat.S_IWOTH if self.in_run_folder else stat.S_IWGRP | stat.S_IWOTH)
            if content is None:
                return False
            if torch.compiler.load_cache_artifacts(self._artifacts(content)) is None:
                raise UnusableEntry("torch cannot read it")
        except Exception as error:  # stores raise errors of their own; the run can compile instead
            self.warn(f"compile cache {self.path} is not used: {_reason(error)}")
            return False
        return True

    def save(self) -> bool:
        """Write what torch has compiled or loaded so far; False if there is nothing, or if that fails."""
        saved = torch.compiler.save_cache_artifacts()
        if saved is None:
            return False
        artifacts = saved[0]
        header = {"key": self.key, "part": self.part, "bytes": len(artifacts), "sha256": _digest(artifacts)}
        try:
            _write(self.path, json.dumps(header, sort_keys=True).encode() + b"\n" + artifacts)
        except Exception as error:  # see load
            self.warn(f"compile cache {self.path} cannot be written: {_reason(error)}")
            return False
        return True

    def _artifacts(self, content: bytes) -> bytes:
        """The artifacts in a file. Raises UnusableEntry if it is damaged, or an entry of another key."""
        line, _, artifacts = content.partition(b"\n")
        try:
            header: dict[str, Any] = json.loads(line)
            expected = (header["bytes"], header["sha256"], header["key"], header["part"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnusableEntry("its first line must be JSON with key, part, bytes and sha256") from error
        if len(artifacts) != expected[0]:
            raise UnusableEntry(f"must have {expected[0]} bytes after the first line; got {len(artifacts)}")
        if _digest(artifacts) != expected[1]:
            raise UnusableEntry(f"must have sha256 {expected[1]}; got {_digest(artifacts)}")
        if _canonical(expected[2]) != _canonical(self.key) or expected[3] != self.part:
            raise UnusableEntry(f"it is an entry of another run: part {expected[3]}, key {_canonical(expected[2])!r}")
        return artifacts


def _canonical(key: object) -> bytes:
    return json.dumps(key, sort_keys=True, default=str).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _resolve(path: str) -> Path | tuple[AbstractFileSystem, str]:
    """The path in a file system; for other URLs, the store and the name in it."""
    if "://" not in path:
        return Path(path)
    files, name = fsspec.core.url_to_fs(path)
    return Path(name) if isinstance(files, LocalFileSystem) else (files, name)


def _read(path: str, forbidden: int) -> bytes | None:
    """The content; None if there is no such file. `forbidden`: bits of the mode that a file must not have.

    Raises UnusableEntry, OSError, and what the store raises.
    """
    place = _resolve(path)
    try:
        if isinstance(place, tuple):
            files, name = place
            content: bytes = files.cat_file(name)
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


def _write(path: str, content: bytes) -> None:
    """Replace the file as a whole, readable by this user only. Raises OSError, and what the store raises."""
    place = _resolve(path)
    if isinstance(place, tuple):
        files, name = place
        files.makedirs(files._parent(name), exist_ok=True)
        files.pipe_file(name, content)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, place)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
