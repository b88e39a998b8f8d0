"""Whether torch can compute the gradients of a stage's inputs and those of its parameters at different times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.distributed.pipelining._backward import (
    _get_grad_fn_or_grad_acc,
    construct_reverse_graph,
    get_param_groups,
)


def can_split_backward(
    outputs: Sequence[Tensor | GradientEdge], inputs: Sequence[Tensor], parameters: Iterable[nn.Parameter]
) -> bool:
    """`outputs` and `inputs` of one forward of the stage, whose graph is still there; it is not changed. torch 2.15
    has the edges of outputs that it has freed.

    torch continues with each group of parameters from the operations in which they meet what depends on the inputs.
    With several such operations in a group it adds gradients twice (torch 2.11; pytorch/pytorch#180952), or
    fails, since another group has freed their graph: where a parameter is used in several places, or where something is
    computed from parameters alone, such as the decoder's self-attention of T5 in a stage that receives the encoder's
    output.
    """
    ends = [node for output in outputs if (node := _node(output)) is not None]
    starts = [node for tensor in inputs if (node := _node(tensor)) is not None]
    accumulators = [node for parameter in parameters if (node := _node(parameter)) is not None]
    groups = get_param_groups(starts, accumulators, construct_reverse_graph(ends))
    return all(len(group["intermediates"]) == 1 for group in groups)


def _node(tensor: Tensor | GradientEdge) -> Node | None:
    """The operation whose result the tensor is, or that gathers its gradient; None if it needs none."""
    if isinstance(tensor, GradientEdge):
        return tensor.node
    return _get_grad_fn_or_grad_acc(tensor) if tensor.requires_grad else None
