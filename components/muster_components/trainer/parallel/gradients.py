"""Gradients over a mesh: their total norm, and clipping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

_EPSILON: Final = 1e-6
"""As in torch.nn.utils.clip_grads_with_norm_."""


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    pipeline: dist.ProcessGroup | None = None,
    uncounted: Collection[nn.Parameter] = (),
) -> Tensor:
    """Scale all gradients such that their total norm is at most `max_norm`; returns the norm before, on all ranks.

    A model has parameters on several meshes if some are split by tensor parallelism, and of other stages on the ranks
    of `pipeline`. Those of `uncounted` are scaled, but another rank or parameter counts for them in the norm.
    """
    by_mesh: dict[DeviceMesh | None, list[Tensor]] = defaultdict(list)
    scaled = []
    for parameter in parameters:
        if (gradient := parameter.grad) is None:
            continue
        scaled.append(local(gradient))
        if parameter not in uncounted:
            by_mesh[gradient.device_mesh if isinstance(gradient, DTensor) else None].append(gradient)
    norms = [_whole(get_total_norm(gradients)) for gradients in by_mesh.values()]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if pipeline is not None:
        squared = total.square()
        dist.all_reduce(squared, group=pipeline)
        total = squared.sqrt()
    factor = torch.clamp(max_norm / (total + _EPSILON), max=1.0)
    torch._foreach_mul_(scaled, factor)
    return total


def redistributed(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient, with the placements of its parameter: with tensor parallelism those of replicated parameters are
    sums that are not yet reduced."""
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def average(gradient: Tensor | None, parameter: Tensor, mesh: DeviceMesh) -> Tensor:
    """The mean over all ranks of `mesh` of the gradient of a parameter that each of them has; None counts as zeros."""
    mean = torch.zeros_like(parameter) if gradient is None else gradient
    for group in mesh.get_all_groups():
        dist.all_reduce(mean, group=group)
    return mean.div_(mesh.size())


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor; other tensors unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
