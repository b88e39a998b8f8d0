"""The tensors of all pipeline stages, one after the other on rank 0, for a model that is saved as a whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster_components.trainer.models.module_tree import named_tensors, whole_tensor
from muster_components.trainer.parallel.sharding import ParallelModel


class StageTensors:
    """Parameters and persistent buffers by name in the whole model; of tied ones the first name and its first copy.

    Every rank creates it and calls `gather`, with the same names in the same order.
    """

    def __init__(self, parallel: ParallelModel) -> None:
        self._device, self._mesh = parallel.device, parallel.mesh
        self._own: dict[str, Tensor] = {}
        for part in parallel.parts:
            for name, tensor in named_tensors(part.model):
                self._own.setdefault(parallel.tied.get(name, name), tensor)
        own = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self._own.items()}
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, own)
        self._stage_width = len(of_ranks) // self._mesh.shape.pp
        self._places: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {}
        for rank in range(0, len(of_ranks), self._stage_width):
            for name, (shape, dtype) in of_ranks[rank].items():
                self._places.setdefault(name, (rank, shape, dtype))

    def gather(self, name: str) -> Tensor | None:
        """The whole tensor, on rank 0 at least."""
        first_rank, shape, dtype = self._places[name]
        own = first_rank == self._mesh.rank - self._mesh.rank % self._stage_width
        whole = whole_tensor(self._own[name]) if own else None
        if first_rank > 0:
            group = self._mesh.dimension("pp").get_group()
            if self._mesh.rank == first_rank:
                assert whole is not None
                dist.send(whole.detach().contiguous(), dst=0, group=group)
            elif self._mesh.rank == 0:
                whole = torch.empty(shape, dtype=dtype, device=self._device)
                dist.recv(whole, src=first_rank, group=group)
        return whole
