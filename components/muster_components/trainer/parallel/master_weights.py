"""bf16 weights with float32 masters, for parts that FSDP2 does not wrap (it casts by itself).

Forward and backward use bf16 weights. The optimizer updates float32 masters, which are what checkpoints contain.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from muster_components.trainer.parallel.gradients import local, redistributed


class MasterWeights:
    """Moves the float32 parameters of `module` to `masters` and gives it bf16 ones instead.

    `masters` has the structure, names, ties and buffers of `module`, and is never called. The weights of batch
    normalization remain float32 in both: its kernels take them in the type of the running mean and variance.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.masters = _copy_structure(module, {})
        weights: dict[nn.Parameter, nn.Parameter] = {}
        for owner in module.modules():
            if isinstance(owner, _BatchNorm):
                continue
            for name, master in owner._parameters.items():
                if master is None or not master.is_floating_point():
                    continue
                if master not in weights:
                    weights[master] = nn.Parameter(master.detach().bfloat16(), requires_grad=master.requires_grad)
                owner._parameters[name] = weights[master]
        self._pairs = list(weights.items())

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Add the bf16 gradients to the masters' float32 ones and clear them: call after each backward pass, so that
        micro-batches add up in float32."""
        to_copy: tuple[list[Tensor], list[Tensor]] = ([], [])
        to_add: tuple[list[Tensor], list[Tensor]] = ([], [])
        for master, weight in self._pairs:
            if weight.grad is None:
                continue
            sums, addends = to_copy if master.grad is None else to_add
            if master.grad is None:
                master.grad = torch.empty_like(master)
            sums.append(local(master.grad))
            addends.append(local(redistributed(weight.grad, weight)))
            weight.grad = None
        if to_copy[0]:
            torch._foreach_copy_(*to_copy)
        if to_add[0]:
            torch._foreach_add_(*to_add)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters to the bf16 weights: call after the masters were updated or loaded."""
        if self._pairs:
            torch._foreach_copy_([local(weight) for _, weight in self._pairs], [local(m) for m, _ in self._pairs])


def _copy_structure(module: nn.Module, copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """The same tree of modules with the same parameters and buffers; its parameters can be replaced by themselves."""
    if module not in copies:
        copied = copies[module] = copy.copy(module)
        copied._parameters = dict(module._parameters)
        copied._modules = {
            name: None if child is None else _copy_structure(child, copies) for name, child in module._modules.items()
        }
    return copies[module]
