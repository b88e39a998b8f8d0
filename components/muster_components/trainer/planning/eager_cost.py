"""The cost of code that is not compiled: what it allocates and computes while it runs on tensors without values."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from muster_components.trainer.planning.cost import Cost, Work, is_view, kernel_work, memory_work, tensor_bytes


class AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active: the bytes of all tensors that were created and still exist, their peak, and the work done.

    Use it inside of a FakeTensorMode. Tensors that existed before do not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self.work = Work()
        self.used: set[int] = set()
        """The storages of all arguments."""
        self._known: set[int] = set()

    def restart(self) -> None:
        """Count the peak, the work and the arguments from now on."""
        self.peak, self.work, self.used = self.live, Work(), set()

    def ignore(self, tensor: Tensor) -> None:
        """Do not count this tensor, which existed before."""
        self._known.add(tensor.untyped_storage()._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self.used.update(tensor.untyped_storage()._cdata for tensor in inputs)
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, Tensor):
                self._track(leaf)
        if tensor_bytes(output) and not is_view(func) and func is not torch.ops.aten._unsafe_view.default:
            self.work += kernel_work(func, args, kwargs, output, padded=False) or memory_work(func, inputs, output)
        return output

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def eager_cost(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cost:
    """The cost of one call. Call it in a FakeTensorMode, with tensors of that mode."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), (args, kwargs)
    )
    tracker = AllocationTracker()
    for tensor in (*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))):
        if isinstance(tensor, Tensor):
            tracker.ignore(tensor)
    with tracker:
        outputs = [leaf for leaf in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
    retained, forward_peak, forward = tracker.live, tracker.peak, tracker.work
    output_bytes = tensor_bytes(outputs)
    differentiable = [output for output in outputs if output.requires_grad]
    gradients = [torch.empty_like(output) for output in differentiable]
    del outputs
    tracker.restart()
    if differentiable:
        with tracker:
            torch.autograd.backward(differentiable, gradients)
    for parameter in module.parameters():
        parameter.grad = None
    return Cost(
        retained=retained,
        output=output_bytes,
        forward_extra=forward_peak,
        backward_extra=tracker.peak - retained,
        forward=forward,
        backward=tracker.work,
    )
