"""FSDP2's collectives by copies between the GPUs of one host, instead of NCCL's kernels.

NCCL's kernels take multiprocessors from the matrix products that run beside them. Here the copy engines read the other
ranks' memory directly (torch's symmetric memory over NVLink):

- all-gather: each rank copies the other ranks' shards;
- reduce-scatter: gradients travel as bf16, half the bytes of float32, and are added in float32. The sum is that of
  FSDP2's float32 reduction, since a conversion from bf16 is exact.

Buffers are allocated once for each kind of block and used in turn. A buffer is used again only after its last reader:
on this rank by events, on other ranks because each collective starts with a barrier, which a rank passes only when all
have finished the collectives before it. Multicast is not used.
"""

from __future__ import annotations

import functools
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

_GATHER_BUFFERS: Final = 3
"""One that is read, one that is filled, one that waits for its readers."""
_SCATTER_BUFFERS: Final = 2
_ALIGNMENT: Final = 4096


def use_symmetric_memory(blocks: Sequence[nn.Module], group: dist.ProcessGroup, device: torch.device) -> None:
    """Give FSDP2's `blocks`, wrapped with bf16 parameters and reductions, these collectives.

    All ranks of `group` are GPUs of one host that can read each other's memory.
    """
    elements = max(sum(math.prod(parameter.shape) for parameter in block.parameters()) for block in blocks)
    size = -(-elements // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT * group.size()
    gather = CopyAllGather(_Buffers(size, _GATHER_BUFFERS, group, device))
    scatter = Float32ReduceScatter(_Buffers(size, _SCATTER_BUFFERS, group, device))
    for block in blocks:
        assert isinstance(block, FSDPModule)
        block.set_custom_all_gather(gather)
        block.set_custom_reduce_scatter(scatter)


def symmetric_memory_available(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether the ranks of `group` are GPUs of one host that can share memory: the same answer on all of them."""
    if device.type != "cuda" or group.size() == 1:
        return False
    own_device = (socket.gethostname(), device.index)
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, own_device, group=group)
    possible = len({host for host, _ in found}) == 1 and all(
        index == device.index or torch.cuda.can_device_access_peer(device.index, index) for _, index in found
    )
    works = possible and _works(group, device)
    dist.all_gather_object(found, works, group=group)
    return all(found)


def _works(group: dist.ProcessGroup, device: torch.device) -> bool:
    try:
        symmetric.rendezvous(symmetric.empty(_ALIGNMENT, dtype=torch.bfloat16, device=device), group.group_name)
    except RuntimeError:  # a container that may not share memory with another, for instance
        return False
    return True


class _Buffers:
    """Symmetric bf16 buffers, used in turn."""

    def __init__(self, elements: int, count: int, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self._tensors = [symmetric.empty(elements, dtype=torch.bfloat16, device=device) for _ in range(count)]
        self._handles = {tensor.data_ptr(): symmetric.rendezvous(tensor, group.group_name) for tensor in self._tensors}
        self._next = 0

    def take(self, elements: int) -> Tensor:
        """The next buffer."""
        tensor = self._tensors[self._next]
        self._next = (self._next + 1) % len(self._tensors)
        return tensor[:elements]

    def handle(self, tensor: Tensor) -> Any:
        """The symmetric memory of a taken buffer."""
        return self._handles[tensor.data_ptr()]


class CopyAllGather(AllGather):
    """All-gather by copies from the other ranks' buffers."""

    def __init__(self, buffers: _Buffers) -> None:
        self._buffers = buffers
        # Of the last two calls: the events before them on the stream that computes, and after them on their own.
        self._computed: deque[torch.cuda.Event] = deque(maxlen=_GATHER_BUFFERS - 1)
        self._gathered: deque[torch.cuda.Event] = deque(maxlen=_GATHER_BUFFERS - 1)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer for the gathered weights; the caller writes this rank's shard into it."""
        assert dtype == torch.bfloat16
        stream = torch.cuda.current_stream()
        # FSDP2 copies the weights out of a buffer before it gathers the block after the next one.
        for events in (self._computed, self._gathered):
            if len(events) == events.maxlen:
                stream.wait_event(events[0])
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.default_stream())
        self._computed.append(event)
        return self._buffers.take(math.prod(int(length) for length in size))

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Copy the other ranks' shards to `output_tensor`, which is a buffer of `allocate`."""
        handle, length = self._buffers.handle(output_tensor), input_tensor.numel()
        handle.barrier(channel=0)
        for other in _others(group):
            shard = handle.get_buffer(other, (length,), output_tensor.dtype, other * length)
            output_tensor[other * length : (other + 1) * length].copy_(shard)
        handle.barrier(channel=1)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._gathered.append(event)


class Float32ReduceScatter(ReduceScatter):
    """Reduce-scatter of bf16 gradients: copies from the other ranks' buffers, then a sum in float32."""

    def __init__(self, buffers: _Buffers) -> None:
        self._buffers = buffers
        self._reduced: deque[torch.cuda.Event] = deque(maxlen=_SCATTER_BUFFERS - 1)
        self._allocates_output = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """In turn: a buffer for the gradients of this rank, and a float32 tensor for the sum."""
        elements = math.prod(int(length) for length in size)
        if self._allocates_output:
            self._allocates_output = False
            return torch.empty(elements, dtype=torch.float32, device=device)
        assert dtype == torch.bfloat16
        self._allocates_output = True
        if len(self._reduced) == self._reduced.maxlen:
            torch.cuda.current_stream().wait_event(self._reduced[0])
        return self._buffers.take(elements)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """The mean over the ranks of their `input_tensor`, which are buffers of `allocate`."""
        handle, length, rank = self._buffers.handle(input_tensor), output_tensor.numel(), group.rank()
        handle.barrier(channel=0)
        shards = {rank: input_tensor[rank * length : (rank + 1) * length]}
        for other in _others(group):
            shards[other] = torch.empty_like(shards[rank])
            shards[other].copy_(handle.get_buffer(other, (length,), input_tensor.dtype, rank * length))
        handle.barrier(channel=1)
        # In the order of the ranks, so that the sum does not depend on which of them adds.
        mean_of_shards(output_tensor, [shards[other] for other in range(group.size())])
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._reduced.append(event)


def mean_of_shards(output: Tensor, shards: Sequence[Tensor]) -> None:
    """Write the mean of `shards` (bf16), added in float32 in their order, to `output` (float32)."""
    _compiled_mean()(output, *shards)


@functools.cache
def _compiled_mean() -> Callable[..., None]:
    """Only a run that uses this imports the compiler, which takes a second."""
    return torch.compile(_mean, dynamic=False)


def _mean(output: Tensor, *shards: Tensor) -> None:
    total = shards[0].float()
    for shard in shards[1:]:
        total = total + shard.float()
    output.copy_(total / len(shards))


def _others(group: dist.ProcessGroup) -> list[int]:
    """The other ranks, beginning with the next one, so that not all read from the same."""
    return [(group.rank() + distance) % group.size() for distance in range(1, group.size())]
