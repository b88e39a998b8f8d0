"""Gradients of inputs and of parameters at different times, as zero-bubble schedules compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.trainer.parallel.families import FAMILIES, build_family, family_batch, family_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

pytestmark = pytest.mark.slow  # imports torch

Tensors = tuple["Tensor", ...]


def stages_of(family: str) -> tuple[list[nn.Module], dict[str, Tensor]]:
    """Four stages with at least one block each."""
    from muster_components.trainer.parallel.balance import partition
    from muster_components.trainer.parallel.call_graph import record_calls
    from muster_components.trainer.parallel.split import build_stage, plan_stages

    module, batch = build_family(family), family_batch(family)
    graph = record_calls(module, batch)
    plans = plan_stages(graph, partition(graph.block_costs(), 4))
    return [build_stage(module, graph, plan) for plan in plans], batch


@pytest.mark.parametrize("family", FAMILIES)
def test_all_stages_but_those_of_t5_between_encoder_and_decoder_can_split_backward(family: str) -> None:
    """And what torch then computes are the gradients of a whole backward pass."""
    import torch
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    from muster_components.trainer.parallel.split_backward import can_split_backward

    stages, batch = stages_of(family)
    sent: Tensors = ()
    found = []
    for stage in stages:
        received, outputs = forward(stage, sent, batch)
        parameters = list(stage.parameters())
        found.append(can_split_backward(outputs, received, parameters))
        if received and found[-1]:
            generator = torch.Generator().manual_seed(2)
            changes = [torch.randn(output.shape, generator=generator) for output in outputs]
            torch.autograd.backward(outputs, changes)
            expected = [tensor.grad for tensor in (*parameters, *received)]
            stage.zero_grad()
            received, outputs = forward(stage, sent, batch)
            _, groups = stage_backward_input(list(outputs), changes, list(received), iter(parameters))
            stage_backward_weight(iter(parameters), groups)
            for tensor, gradient in zip((*parameters, *received), expected, strict=True):
                torch.testing.assert_close(tensor.grad, gradient)
        sent = outputs
    assert found[1:] == [family != "t5", True, True]


def forward(stage: nn.Module, sent: Tensors, batch: dict[str, Tensor]) -> tuple[Tensors, Tensors]:
    """What the stage receives, and what it sends or else its loss; no views, as in a pipeline."""
    received = tuple(tensor.detach().requires_grad_() for tensor in sent)
    output = stage(*received, **batch)
    return received, tuple(t.clone() for t in (output if isinstance(output, tuple) else (family_loss(output),)))


def test_a_stage_that_uses_a_parameter_in_two_places_cannot() -> None:
    import torch

    from muster_components.trainer.parallel.split_backward import can_split_backward

    weight, other = (torch.nn.Parameter(torch.eye(2)) for _ in range(2))
    x = torch.ones(1, 2, requires_grad=True)
    assert can_split_backward([x @ weight @ other], [x], [weight, other])
    assert not can_split_backward([x @ weight @ weight], [x], [weight, other])
