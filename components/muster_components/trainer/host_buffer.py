"""Host memory for checkpoints: allocated once, page-locked on a machine with a GPU, bounded by the pod's memory."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from muster_components.trainer.checkpoint_memory import HEADER_BYTES

_FALLOCATE_BYTES: Final = 1 << 30


class HostBuffer:
    """Memory of `slots` slots behind their pages. `owner`: the launcher's memory file; None: memory of this process."""

    def __init__(self, slot_bytes: int, slots: int, *, pin: bool, owner: int | None) -> None:
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.slots = slots
        self.size = HEADER_BYTES + slots * self.slot_bytes
        self.survives_kill = False
        self.pinned = self._registered = False
        self._tensor = self._map(owner)
        if pin:
            self._pin()
        self.memory = memoryview(self._tensor.numpy())  # type: ignore[arg-type]

    def start(self, slot: int) -> int:
        """Of a slot, in bytes from the start of the memory."""
        return HEADER_BYTES + slot * self.slot_bytes

    def place(self, slot: int, offset: int, like: Tensor) -> Tensor:
        """The memory of a tensor in a slot, in the form of `like`."""
        start = self.start(slot) + offset
        flat = torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=start)
        return flat.view(like.shape)

    def release(self) -> None:
        """Undo the page-locking, before the memory is freed."""
        if self._registered:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._tensor.data_ptr())
            self._registered = False

    def _map(self, owner: int | None) -> Tensor:
        if owner is not None:
            try:
                os.ftruncate(owner, self.size)
                for at in range(0, self.size, _FALLOCATE_BYTES):
                    os.posix_fallocate(owner, at, min(_FALLOCATE_BYTES, self.size - at))
                self.survives_kill = True
                return torch.frombuffer(mmap.mmap(owner, self.size), dtype=torch.uint8)
            except OSError:  # a limit of this process: its own memory serves as well, but ends with it
                self.survives_kill = False
        return torch.frombuffer(
            mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8
        )

    def _pin(self) -> None:
        """Page-lock the memory; if it cannot be, use memory of torch that is, but ends with the process."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(self._tensor.data_ptr(), self.size, 0)) == 0 and self._tensor.is_pinned():
            self.pinned = self._registered = True
            return
        self._tensor = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
        self.pinned, self.survives_kill = True, False


@dataclass(frozen=True, slots=True)
class PodMemory:
    """Memory of this pod, in bytes: its limit, and what is left of it."""

    limit: int
    free: int


def pod_memory(cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> PodMemory | None:
    """The memory of the pod: of its cgroup (v2), and not more than that of the host; None if unknown. The cache of
    files counts as free."""
    try:
        lines = (line.split() for line in meminfo.read_text().splitlines())
        host = {fields[0]: int(fields[1]) * 1024 for fields in lines if len(fields) > 1}
        limit, free = host["MemTotal:"], host["MemAvailable:"]
    except (OSError, ValueError, KeyError):
        return None
    try:
        allowed = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        free = min(free, allowed - used + int(stat.get("inactive_file", 0)))
        limit = min(limit, allowed)
    except (OSError, ValueError):  # no such cgroup, or "max": no limit
        pass
    return PodMemory(limit, max(0, free))
