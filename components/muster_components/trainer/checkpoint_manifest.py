"""The files of a checkpoint: name, size and SHA-256 of each, in its `muster.json`.

Digests detect damage (disk errors, interrupted copies) and files of another checkpoint. They do not authenticate: a
program that can write to the folder can write matching digests. `checkpoint_files` prevents execution of code in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from muster_components.trainer.regular_files import open_regular

METADATA: Final = ".metadata"
"""The file of torch.distributed.checkpoint that says which tensor is where."""
_THREADS: Final = 4
"""Files that one rank hashes in parallel; hashlib releases the GIL."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of a checkpoint: its path in the folder, its size in bytes, and its SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str


def with_digests(description: Mapping[str, object], files: Sequence[FileDigest]) -> dict[str, object]:
    """The content of `muster.json`: the description, the digests of all other files, and a digest of all that."""
    listed = [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in files]
    content: dict[str, object] = {**description, "files": listed}
    return {**content, "sha256": _digest(content)}


def read_digests(described: Mapping[str, object]) -> tuple[FileDigest, ...] | None:
    """The files listed in `muster.json`; None for a checkpoint of a version without digests. Raises ValueError."""
    if "files" not in described and "sha256" not in described:
        return None
    content = {name: value for name, value in described.items() if name != "sha256"}
    if described.get("sha256") != _digest(content):
        raise ValueError("content does not match its own sha256")
    try:
        listed = cast(list[dict[str, Any]], content["files"])
        files = tuple(FileDigest(str(file["name"]), int(file["bytes"]), str(file["sha256"])) for file in listed)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError("files must be a list of name, bytes and sha256") from error
    if outside := [file.name for file in files if not is_path_inside(file.name)]:
        raise ValueError(f"files must be in the checkpoint's folder; got {outside[0]!r}")
    return files


def is_file_name(name: str) -> bool:
    """Whether `name` is a file name without a path."""
    return name not in ("", ".", "..") and Path(name).name == name


def is_path_inside(name: str) -> bool:
    """Whether `name` is the path of a file below the folder, in its shortest form."""
    path = PurePosixPath(name)
    return bool(path.parts) and str(path) == name and not path.is_absolute() and ".." not in path.parts


def verify_files(folder: Path, files: Sequence[FileDigest]) -> None:
    """Compare size and digest of `files`. Raises ValueError with the first that differs, OSError if one is missing."""
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda file: _verify_file(folder, file), files):
            pass


def _verify_file(folder: Path, file: FileDigest) -> None:
    with open_regular(folder / file.name) as stream:
        size = stream.seek(0, 2)
        if size != file.size:
            raise ValueError(f"{file.name} must have {file.size:,} bytes; got {size:,}")
        stream.seek(0)
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise ValueError(f"{file.name} must have sha256 {file.sha256[:12]}...; got {found[:12]}...")


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
