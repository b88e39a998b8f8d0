"""The files of one rank in host memory, and how they are written. Imports no torch."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_components.trainer.checkpoint_manifest import FileDigest, is_file_name

SLOTS: Final = 2
"""One is written to the volume while the other takes the next save."""
_CHUNK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A file of a checkpoint: its bytes in the slot, `offset` from the start of the slot."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlotContent:
    """What is whole in a slot: this rank's files of the checkpoint of `step`."""

    step: int
    start: int
    """Of the slot, in bytes from the start of the memory."""
    files: tuple[SlotFile, ...]


def write_files(folder: Path, memory: memoryview, content: SlotContent, threads: int) -> tuple[FileDigest, ...]:
    """Write the files of a slot, durably, with several threads; returns their digests. Raises OSError."""
    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="checkpoint-file") as pool:
        written = pool.map(lambda file: _write_file(folder, memory, content.start, file), content.files)
        return tuple(written)


def _write_file(folder: Path, memory: memoryview, start: int, file: SlotFile) -> FileDigest:
    if not is_file_name(file.name):
        raise ValueError(f"files of a checkpoint must be in its folder; got {file.name!r}")
    sha256 = hashlib.sha256()
    handle = os.open(folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        at, end = start + file.offset, start + file.offset + file.size
        while at < end:  # both calls release the GIL
            written = os.write(handle, memory[at : min(end, at + _CHUNK_BYTES)])
            sha256.update(memory[at : at + written])
            at += written
        os.fsync(handle)
    finally:
        os.close(handle)
    return FileDigest(file.name, file.size, sha256.hexdigest())
