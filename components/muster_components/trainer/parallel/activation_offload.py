"""Activations in host memory between forward and backward.

Each storage that autograd saves is copied to the host on a CUDA stream of its own, while forward continues, and back
before backward needs it. Some always stay on the GPU: the latest ones, which backward needs first, and those whose copy
has not ended. When one is needed again, copying those before it back begins, so that it overlaps with backward.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

MIN_BYTES: Final = 1024**2
"""Smaller storages stay on the GPU: to launch a copy takes longer than the copy."""
WINDOW: Final = 16
"""Storages that stay on the GPU, that are being copied to the host, and that are copied back early: about as many as a
compiled block saves."""


class ActivationOffload:
    """Moves what autograd saves within `context`."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device, *, min_bytes: int = MIN_BYTES) -> None:
        """`modules`: their parameters and buffers are not moved. On a CPU device, copies are made at once."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._min_bytes = min_bytes
        self._kept = {buffer.untyped_storage().data_ptr() for module in modules for buffer in module.buffers()}
        self._order: list[weakref.ref[_Storage]] = []
        self._latest: deque[weakref.ref[_Storage]] = deque()
        self._leaving: deque[weakref.ref[_Storage]] = deque()
        self._known: dict[int, weakref.ref[_Storage]] = {}

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Around forward passes; backward passes may be inside or follow."""
        self._order.clear()
        self._latest.clear()
        self._leaving.clear()
        self._known.clear()
        # Compiled modules call them; Dynamo would trace them.
        disable: Any = torch.compiler.disable
        pack, unpack = disable(self._pack), disable(self._unpack)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    def _pack(self, tensor: Tensor) -> Tensor | _View:
        if not self._moves(tensor):
            # Not a result itself: it would keep alive the node that keeps it.
            return tensor if tensor.is_leaf else tensor.detach()
        address = tensor.untyped_storage().data_ptr()
        known = self._known.get(address)
        moved = None if known is None else known()
        if moved is None or not moved.is_at(address, tensor._version):
            moved = _Storage(len(self._order), tensor)
            self._order.append(weakref.ref(moved))
            self._known[address] = self._order[-1]
            self._latest.append(self._order[-1])
            if len(self._latest) > WINDOW:
                self._leave(self._latest.popleft()())
        return _View(moved, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _moves(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or isinstance(tensor._base, nn.Parameter) or not tensor.is_floating_point():
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self._min_bytes and storage.data_ptr() not in self._kept

    def _unpack(self, saved: Tensor | _View) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        moved = saved.storage
        flat = moved.fetch(self._stream)
        if self._stream is not None and moved.returned is not None:
            torch.cuda.current_stream().wait_event(moved.returned)
        for other in self._order[max(0, moved.index - WINDOW) : moved.index][::-1]:
            if (earlier := other()) is not None:
                earlier.fetch(self._stream)
        whole = torch.empty(0, dtype=saved.dtype, device=flat.device)
        return whole.set_(flat.untyped_storage(), saved.offset, saved.size, saved.stride)

    def _leave(self, moved: _Storage | None) -> None:
        """Start to copy a storage to the host, and free on the GPU the one whose copy was started WINDOW before."""
        if moved is None:  # backward has used it
            return
        moved.leave(self._stream)
        self._leaving.append(weakref.ref(moved))
        if self._stream is None or len(self._leaving) > WINDOW:
            left = self._leaving.popleft()()
            if left is not None:
                left.free()


class _Storage:
    """A storage that autograd has saved, on the device, on the host, or both."""

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.version = tensor._version
        self._tensor: Tensor | None = tensor.detach()  # has the version counter of the saved one
        self.device_copy: Tensor | None = _bytes_of(tensor)
        self._device = tensor.device
        self._host: Tensor | None = None
        self._left: torch.cuda.Event | None = None
        self.returned: torch.cuda.Event | None = None

    def is_at(self, address: int, version: int) -> bool:
        """Whether it is on the device at this address, with the contents of this version."""
        return (
            self._tensor is not None
            and self._tensor.untyped_storage().data_ptr() == address
            and self._tensor._version == self.version == version
        )

    def leave(self, stream: torch.cuda.Stream | None) -> None:
        """Copy to the host."""
        assert self.device_copy is not None
        self._require_unchanged()
        self._host = torch.empty(self.device_copy.shape, dtype=torch.uint8, pin_memory=stream is not None)
        if stream is None:
            self._host.copy_(self.device_copy)
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._host.copy_(self.device_copy, non_blocking=True)
            self._left = stream.record_event()

    def free(self) -> None:
        """Free it on the device, where what follows may use the memory after the copy has ended."""
        if self._left is not None:
            torch.cuda.current_stream().wait_event(self._left)
        self._require_unchanged()
        self.device_copy = self._tensor = None

    def fetch(self, stream: torch.cuda.Stream | None) -> Tensor:
        """The bytes on the device; the caller waits for `returned`."""
        if self.device_copy is None:
            assert self._host is not None
            # Memory of the current stream, in which it is freed: only its contents come from the other one.
            self.device_copy = torch.empty(self._host.shape, dtype=torch.uint8, device=self._device)
            if stream is None:
                self.device_copy.copy_(self._host)
            else:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self.device_copy.copy_(self._host, non_blocking=True)
                    self.returned = stream.record_event()
        self._require_unchanged()
        return self.device_copy

    def _require_unchanged(self) -> None:
        if self._tensor is not None and self._tensor._version != self.version:
            raise RuntimeError("a tensor that backward needs was changed in place; remove --offload_activations")


@dataclass(frozen=True, slots=True)
class _View:
    """What autograd keeps instead of a tensor."""

    storage: _Storage
    dtype: torch.dtype
    offset: Any
    size: Any
    stride: tuple[int, ...]


def _bytes_of(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage())
