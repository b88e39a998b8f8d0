"""The history of a GPU's memory: allocations with their stacks, as torch's CUDA allocator records them.

The snapshot is torch's own format (a pickle), which https://pytorch.org/memory_viz shows.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Final

import torch

MAX_HISTORY: Final = 200_000
"""Newest allocations and frees that are kept, which bounds host memory."""


def snapshot_refusal() -> str:
    """Why this process can write no memory snapshot; empty if it can."""
    if not torch.cuda.is_available():
        return "memory snapshots are of torch's CUDA allocator; no GPU is used"
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return f"memory snapshots are of torch's native CUDA allocator; this process uses {backend}"
    return ""


def start_memory_history() -> None:
    """Record allocations and frees from now on. A history that the program itself records is replaced.

    Raises RuntimeError if torch cannot record, for example with another allocator than its own.
    """
    torch.cuda.memory._record_memory_history(max_entries=MAX_HISTORY)


def stop_memory_history() -> None:
    """Record no more, and drop the history. An allocator that cannot record is left as it is."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.memory._record_memory_history(enabled=None)


def write_memory_snapshot(path: Path) -> None:
    """Write the snapshot atomically, and stop recording. Raises OSError, RuntimeError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        snapshot = torch.cuda.memory._snapshot()
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            pickle.dump(snapshot, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        stop_memory_history()
        temporary.unlink(missing_ok=True)
