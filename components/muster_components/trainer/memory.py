"""Memory of this process in bytes: of the CUDA allocator on GPUs, else resident memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch


def used_bytes(device: torch.device) -> int | None:
    """Memory in use; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_bytes(device: torch.device) -> int:
    """Peak memory in use."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
