"""Host memory for checkpoints: allocated once, page-locked on a machine with a GPU, bounded by the pod's memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from muster_components.trainer.checkpoint_memory import HEADER_BYTES

_PIECE_BYTES: Final = 256 << 20
"""Page-locked at once: meanwhile the driver does not take the launches of the training thread."""
_THREADS: Final = 8
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14


class HostBuffer:
    """Memory of `slots` slots behind their pages. `pin`: page-lock it. `owner`: the launcher's memory file;
    None: memory that ends with this process."""

    def __init__(self, slot_bytes: int, slots: int, *, pin: bool, owner: int | None = None) -> None:
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.slots = slots
        self.size = HEADER_BYTES + slots * self.slot_bytes
        self.pinned = self.outlives_rank = False
        self._registered: list[int] = []
        self._tensor = self._map(owner)
        if pin:
            self._pin()
        self.memory = memoryview(self._tensor.numpy())  # type: ignore[arg-type]

    def start(self, slot: int) -> int:
        """Of a slot, in bytes from the start of the memory."""
        return HEADER_BYTES + slot * self.slot_bytes

    def pieces(self, slot: int, offset: int, like: Tensor) -> list[tuple[slice, Tensor]]:
        """The memory of a tensor in a slot, flat, in parts that are page-locked together, each with its elements."""
        start, found, at = self.start(slot) + offset, [], 0
        while at < like.numel():
            begin = start + at * like.element_size()
            left = _PIECE_BYTES - begin % _PIECE_BYTES
            count = min(like.numel() - at, left // like.element_size())  # tensors are aligned: no element is in two
            found.append(
                (slice(at, at + count), torch.frombuffer(self.memory, dtype=like.dtype, count=count, offset=begin))
            )
            at += count
        return found

    def release(self) -> None:
        """Undo the page-locking, before the memory is freed."""
        runtime: Any = torch.cuda.cudart() if self._registered else None  # type: ignore[no-untyped-call]
        while self._registered:
            runtime.cudaHostUnregister(self._tensor.data_ptr() + self._registered.pop())

    def _populate(self, at: int) -> None:
        """Have the kernel allocate the pages of a piece, without holding the GIL."""
        size = min(_PIECE_BYTES, self.size - at)
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if advise(self._tensor.data_ptr() + at, size, _MADV_POPULATE_WRITE):
            self._tensor[at : at + size].zero_()

    def _map(self, owner: int | None) -> Tensor:
        if owner is not None:
            try:
                os.ftruncate(owner, self.size)
                memory = mmap.mmap(owner, self.size)
                self.outlives_rank = True
                return _tensor_of(memory)
            except OSError:  # a limit of this process, such as ulimit -f: its own memory serves as well
                pass
        return _tensor_of(mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def _pin(self) -> None:
        """Page-lock the memory; if it cannot be, use memory of torch that is, but ends with the process."""
        starts = range(0, self.size, _PIECE_BYTES)
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:  # without the driver: the kernel makes the pages
            list(pool.map(self._populate, starts))
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for at in starts:
            began_s = time.perf_counter()
            if int(runtime.cudaHostRegister(self._tensor.data_ptr() + at, min(_PIECE_BYTES, self.size - at), 0)):
                self.release()
                self._tensor = torch.zeros(self.size, dtype=torch.uint8, pin_memory=True)
                self.outlives_rank = False
                break
            self._registered.append(at)
            time.sleep(time.perf_counter() - began_s)  # the training thread's turn
        self.pinned = True


def _tensor_of(memory: mmap.mmap) -> Tensor:
    with suppress(OSError):  # faster to page-lock, where the kernel has such pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


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
