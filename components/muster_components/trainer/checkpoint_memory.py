"""The files of one rank in host memory, and how they are written. Imports no torch.

The launcher creates a memory file for each rank and keeps it open, so that what is in it outlives SIGKILL of the rank,
is charged to the pod, and ends with the launcher. The memory begins with one page for each slot that says which step is
whole in it. The page is cleared before the slot is overwritten and written after it is complete: a rank that is killed
at any moment leaves the other slot whole.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.checkpoint_manifest import FileDigest, is_file_name

MEMORY_VARIABLE: Final = "MUSTER_CHECKPOINT_FD"
"""The file descriptor of the memory that the launcher owns for this rank."""
SLOTS: Final = 2
"""One is written to the volume while the other takes the next save."""
_PAGE_BYTES: Final = 1 << 18
_DIGEST_BYTES: Final = 32
HEADER_BYTES: Final = SLOTS * _PAGE_BYTES
_CHUNK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A file of a checkpoint: its bytes in the slot, `offset` from the start of the slot."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlotContent:
    """What is whole in a slot: a rank's files of the checkpoint of `step`, and of rank 0 its description."""

    step: int
    start: int
    """Of the slot, in bytes from the start of the memory."""
    files: tuple[SlotFile, ...]
    description: Mapping[str, Any] = field(default_factory=dict)


def memory_name(rank: int) -> str:
    """The name of the memory file of a rank."""
    return f"muster-checkpoint-{rank}"


def owned_memory(environ: Mapping[str, str]) -> int | None:
    """The file descriptor of the memory that the launcher owns for this rank; None without one. What a rank starts,
    such as torchrun, inherits the variable and not the file: any other file may have the number."""
    text, rank = environ.get(MEMORY_VARIABLE, ""), environ.get("RANK", "")
    if not (text.isdecimal() and rank.isdecimal()):
        return None
    try:
        found = os.readlink(f"/proc/self/fd/{int(text)}")
    except OSError:
        return None
    return int(text) if found == f"/memfd:{memory_name(int(rank))} (deleted)" else None


def clear_slot(memory: memoryview, slot: int) -> None:
    """Say that nothing is whole in the slot. Call before overwriting it."""
    memory[slot * _PAGE_BYTES : slot * _PAGE_BYTES + _DIGEST_BYTES] = bytes(_DIGEST_BYTES)


def mark_whole(memory: memoryview, slot: int, content: SlotContent) -> None:
    """Say what the slot has. If that is longer than a page (thousands of files), the slot stays unmarked."""
    files = [[file.name, file.offset, file.size] for file in content.files]
    value = {"step": content.step, "start": content.start, "files": files, "description": dict(content.description)}
    text = json.dumps(value).encode()
    at = slot * _PAGE_BYTES + _DIGEST_BYTES
    if len(text) + _DIGEST_BYTES + 8 > _PAGE_BYTES:
        return
    memory[at : at + 8] = len(text).to_bytes(8, "little")
    memory[at + 8 : at + 8 + len(text)] = text
    memory[at - _DIGEST_BYTES : at] = hashlib.sha256(text).digest()  # last: it makes the page valid


def whole_slots(memory: memoryview) -> list[SlotContent]:
    """What is whole in the memory of a rank, the newest step first."""
    found = []
    for slot in range(SLOTS):
        page = memory[slot * _PAGE_BYTES : (slot + 1) * _PAGE_BYTES]
        size = int.from_bytes(page[_DIGEST_BYTES : _DIGEST_BYTES + 8], "little")
        text = bytes(page[_DIGEST_BYTES + 8 : _DIGEST_BYTES + 8 + size])
        if not size or hashlib.sha256(text).digest() != bytes(page[:_DIGEST_BYTES]):
            continue
        value = json.loads(text)
        files = tuple(SlotFile(*file) for file in value["files"])
        found.append(SlotContent(value["step"], value["start"], files, value["description"]))
    return sorted(found, key=lambda content: content.step, reverse=True)


def read_memory(handle: int) -> memoryview | None:
    """The memory of a rank; None if the rank has not used it."""
    size = os.fstat(handle).st_size
    return memoryview(mmap.mmap(handle, size)) if size > HEADER_BYTES else None


def write_files(
    folder: Path, memory: memoryview, content: SlotContent, threads: int, niceness: int = 0
) -> tuple[FileDigest, ...]:
    """Write the files of a slot, durably, with several threads of lower priority by `niceness` (Linux); returns their
    digests. Raises OSError."""
    with ThreadPoolExecutor(max(1, threads), "checkpoint-file", _lower_priority, (niceness,)) as pool:
        written = pool.map(lambda file: _write_file(folder, memory, content.start, file), content.files)
        return tuple(written)


def _lower_priority(niceness: int) -> None:
    """Of this thread: elsewhere than on Linux a priority is that of the whole process."""
    if niceness and sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


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
