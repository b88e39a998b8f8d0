"""The cost of a model's code outside of its units: embeddings, norms, the loss, and whatever joins them.

The model runs with units that only pass on tensors of the right shapes, so that what is allocated belongs to the code
between two of their calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from muster_components.trainer.planning.cost import Cost
from muster_components.trainer.planning.eager_cost import AllocationTracker

Replacement = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
"""What is called instead of a unit's forward: with the unit, its arguments and its keyword arguments."""


@dataclass(frozen=True, slots=True)
class UnitCall:
    """A call of a unit: a block, or another compiled module."""

    unit: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class OutsideRun:
    """Forward and backward of the code between the units, which only pass on tensors of the right shapes.

    `costs[i]` is what runs before the call i of a unit, and after the call i - 1; `parameters[i]` what it uses.
    """

    def __init__(self, calls: Sequence[UnitCall], units: Sequence[nn.Module], known: Sequence[Tensor]) -> None:
        self.costs: list[Cost] = []
        self.parameters: list[list[nn.Parameter]] = []
        self.seen: set[int] = set()
        self._calls = calls
        self._units = units
        self._parameters = {
            tensor.untyped_storage()._cdata: tensor for tensor in known if isinstance(tensor, nn.Parameter)
        }
        self._tracker = AllocationTracker()
        for tensor in known:
            self._tracker.ignore(tensor)
        self._start = 0
        self._next_call = 0
        self._backward_extra: dict[int, Cost] = {}

    def run(self, forward: Callable[[], Tensor]) -> None:
        """Measure it."""
        with self._tracker:
            with replaced_forward(self._units, self._pass_on):
                loss = forward()
            self._end_forward()
            self._tracker.restart()
            self._start = self._tracker.live
            loss.backward()  # type: ignore[no-untyped-call]
            self.end_backward(0)
        self.costs = [
            Cost(
                retained=cost.retained,
                forward_extra=cost.forward_extra,
                forward=cost.forward,
                backward_extra=self._backward_extra.get(number, Cost()).backward_extra,
                backward=self._backward_extra.get(number, Cost()).backward,
            )
            for number, cost in enumerate(self.costs)
        ]

    def _pass_on(self, unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = self._next_call
        self._next_call += 1
        self._end_forward()
        leaves, spec = pytree.tree_flatten(self._calls[number].output)
        inputs = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        trigger = torch.zeros((), requires_grad=True)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        outputs = iter(_PassOn.apply(self, number, tensors, trigger, *inputs))  # type: ignore[no-untyped-call]
        values = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._tracker.restart()
        self._start = self._tracker.live
        return pytree.tree_unflatten(values, spec)

    def _end_forward(self) -> None:
        tracker = self._tracker
        self.costs.append(
            Cost(
                retained=max(0, tracker.live - self._start),
                forward_extra=tracker.peak - self._start,
                forward=tracker.work,
            )
        )
        used = [tensor for key, tensor in self._parameters.items() if key in tracker.used]
        self.parameters.append(used)
        self.seen.update(map(id, used))

    def end_backward(self, number: int) -> None:
        """The backward of the code before call `number` + 1 has ended."""
        tracker = self._tracker
        self._backward_extra[number] = Cost(backward_extra=tracker.peak - self._start, backward=tracker.work)

    def begin_backward(self) -> None:
        """The backward of a unit has ended."""
        self._tracker.restart()
        self._start = self._tracker.live


class _PassOn(torch.autograd.Function):
    """Takes the place of a unit's call: tensors like those that it returned, and gradients of its inputs."""

    @staticmethod
    def forward(ctx: Any, run: OutsideRun, number: int, like: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.run, ctx.number = run, number
        ctx.shapes = [(tensor.shape, tensor.dtype) for tensor in inputs]
        outputs = tuple(torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in like)
        ctx.mark_non_differentiable(*(output for output in outputs if not output.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> tuple[Any, ...]:
        ctx.run.end_backward(ctx.number + 1)
        gradients = [torch.empty(shape, dtype=dtype) for shape, dtype in ctx.shapes]
        ctx.run.begin_backward()
        return (None, None, None, *gradients)


@contextlib.contextmanager
def replaced_forward(units: Sequence[nn.Module], replacement: Replacement) -> Iterator[None]:
    """While active, calls of the units call `replacement`."""
    for unit in units:
        unit.forward = _bound(unit, replacement)
    try:
        yield
    finally:
        for unit in units:
            del unit.forward


def _bound(unit: nn.Module, replacement: Replacement) -> Any:
    return lambda *args, **kwargs: replacement(unit, args, kwargs)
