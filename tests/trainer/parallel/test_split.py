"""Pipeline stages of unmodified models have loss and gradients of the whole model. One process runs all stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from tests.trainer.parallel.families import FAMILIES, TIED, build_family, family_batch, family_loss

from muster_components.trainer.errors import InputError, TrainerError

if TYPE_CHECKING:
    from torch import Tensor, nn

pytestmark = pytest.mark.slow  # imports torch

Loss = Callable[[Any], "Tensor"]


def split(module: nn.Module, batch: dict[str, Tensor], blocks_per_stage: Sequence[int]) -> list[nn.Module]:
    from muster_components.trainer.parallel.call_graph import record_calls
    from muster_components.trainer.parallel.split import build_stage, plan_stages

    graph = record_calls(module, batch)
    return [build_stage(module, graph, plan) for plan in plan_stages(graph, blocks_per_stage)]


def run_stages(stages: Sequence[nn.Module], batch: dict[str, Tensor], loss: Loss) -> Tensor:
    """Forward and backward of all stages, each with a graph of its own, as in a pipeline; returns the loss."""
    import torch

    inputs: list[tuple[Tensor, ...]] = []
    outputs: list[Any] = []
    for stage in stages:
        inputs.append(tuple(t.detach().requires_grad_() for t in outputs[-1]) if outputs else ())
        outputs.append(stage(*inputs[-1], **batch))
    result = loss(outputs[-1])
    torch.autograd.backward(result)
    for output, received in zip(outputs[-2::-1], inputs[:0:-1], strict=True):
        assert all(tensor.grad is not None for tensor in received), "torch 2.11 requires a gradient for what is sent"
        torch.autograd.backward(output, [tensor.grad for tensor in received])
    return result.detach()


def summed_gradients(module: nn.Module, stages: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The gradients of the stages by the names of the whole model, copies of a parameter summed.

    Raises KeyError for a parameter of a stage that the model does not have.
    """
    import torch

    first_names = {id(parameter): name for name, parameter in module.named_parameters()}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    found: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            name = first_names[id(parameters[name])]
            found[name] = found[name] + gradient if name in found else gradient
    return found


def assert_same_as_whole(
    module: nn.Module, batch: dict[str, Tensor], blocks_per_stage: Sequence[int], loss: Loss = lambda output: output
) -> list[nn.Module]:
    import torch

    whole = loss(module(**batch))
    torch.autograd.backward(whole)
    stages = split(module, batch, blocks_per_stage)
    torch.testing.assert_close(run_stages(stages, batch, loss), whole.detach())
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in module.named_parameters()
    }
    torch.testing.assert_close(summed_gradients(module, stages), gradients)
    return stages


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stages", [2, 4])
def test_loss_and_gradients_of_the_stages_are_those_of_the_whole_model(family: str, stages: int) -> None:
    from muster_components.trainer.parallel.balance import partition
    from muster_components.trainer.parallel.call_graph import record_calls
    from muster_components.trainer.parallel.split import shared_parameters

    module, batch = build_family(family), family_batch(family)
    lengths = partition(record_calls(module, batch).block_costs(), stages)
    parts = assert_same_as_whole(module, batch, lengths, family_loss)
    shared = shared_parameters(module, parts)
    assert len(shared) == (1 if family in TIED else 0)
    for parameter in shared:
        assert {0, stages - 1} <= {stage for stage, _ in parameter.copies}


@pytest.mark.parametrize("family", ["llama", "t5", "bert", "mixtral"])
def test_a_model_without_weights_is_split_as_one_with_weights(family: str) -> None:
    import torch

    from muster_components.trainer.parallel.call_graph import record_calls
    from muster_components.trainer.parallel.split import build_stage, plan_stages

    batch = family_batch(family)
    with torch.device("meta"):
        without = build_family(family)
    graph = record_calls(without, batch)
    expected = record_calls(build_family(family), batch)
    assert [(call.module, call.flops, call.uses) for call in graph.calls] == [
        (call.module, call.flops, call.uses) for call in expected.calls
    ]
    plans = plan_stages(graph, [2, 2, 2])
    assert plans == plan_stages(expected, [2, 2, 2])
    stages = [build_stage(without, graph, plan) for plan in plans]
    assert all(parameter.is_meta for stage in stages for parameter in stage.parameters())
    assert {name for stage in stages for name, _ in stage.named_parameters(remove_duplicate=False)} == {
        name for name, _ in without.named_parameters(remove_duplicate=False)
    }


def test_the_decoder_of_t5_receives_the_output_of_its_encoder() -> None:
    from muster_components.trainer.parallel.call_graph import record_calls
    from muster_components.trainer.parallel.split import plan_stages

    graph = record_calls(build_family("t5"), family_batch("t5"))
    sent = [[graph.calls[result.call].module for result in plan.sends] for plan in plan_stages(graph, [3, 1, 2])]
    decoder = "decoder.block.0"
    assert sent == [["encoder.dropout"], ["encoder.dropout", decoder, decoder, decoder], []]


def test_embedding_and_head_count_to_the_blocks_beside_them() -> None:
    from muster_components.trainer.parallel.call_graph import record_calls

    costs = record_calls(build_family("llama"), family_batch("llama")).block_costs()
    assert len(set(costs[:-1])) == 1
    assert costs[-1] == costs[0] + 2 * (2 * 16) * 32 * 97  # the head: 2 x tokens x width x vocabulary


def small_model(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Models with a structure of their own, without Transformers."""
    import torch
    from torch import nn

    width = 8

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tanh(self.linear(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((width,), 1.5))
            self.parts = nn.ModuleDict({"inside": nn.Linear(4, width), "outside": nn.Linear(width, 3)})
            self.blocks = nn.ModuleList(Block() for _ in range(6))
            self.dropout = nn.Dropout(0.5)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.parts["inside"](x)
            kept = []
            if kind == "dropout":
                hidden = self.dropout(hidden)
            if kind in ("dropout", "skip"):
                kept = [hidden]
            if kind == "in place":
                hidden += self.scale
            for index, block in enumerate(self.blocks):
                if kind == "skip" and index >= 3:
                    hidden = hidden + kept.pop()
                hidden = block(hidden)
                if kind == "skip" and index < 2:
                    kept.append(hidden)
                if kind == "twice":
                    hidden = block(hidden)
            if kind == "dropout":
                hidden = hidden + kept.pop()
            return self.parts["outside"](hidden * self.scale).square().sum()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    return Model(), {"x": x}


@pytest.mark.parametrize("kind", ["plain", "skip", "in place"])
def test_containers_skip_connections_and_own_parameters_of_the_model(kind: str) -> None:
    module, batch = small_model(kind)
    stages = assert_same_as_whole(module, batch, [2, 1, 3])
    assert [name for name, _ in stages[1].named_parameters()] == [
        "scale",
        "blocks.2.linear.weight",
        "blocks.2.linear.bias",
    ]


def test_what_dropout_returned_is_sent_and_not_drawn_again() -> None:
    import torch

    module, batch = small_model("dropout")
    stages = split(module, batch, [3, 3])
    kept, hidden = stages[0](**batch)
    assert (kept == 0).any()
    # The second stage adds what the first one dropped from; with an input of zeros, only this is left.
    torch.manual_seed(5)
    first = stages[1](kept, hidden, **batch)
    torch.manual_seed(6)
    assert torch.equal(first, stages[1](kept, hidden, **batch))


def test_an_exception_handler_of_the_model_does_not_see_the_end_of_a_stage() -> None:
    from torch import nn

    module, batch = small_model("plain")

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x=x)  # type: ignore[no-any-return]
            except Exception:
                return x

    assert_same_as_whole(Careful(), batch, [3, 3])


def test_a_block_that_is_called_twice_is_refused() -> None:
    module, batch = small_model("twice")
    with pytest.raises(InputError, match=r"blocks that forward calls exactly once.*blocks\.0"):
        split(module, batch, [3, 3])


@pytest.mark.parametrize(
    ("family", "blocks"), [("llama", "model.layers"), ("t5", "encoder.block"), ("vit", "vit.layers")]
)
def test_the_blocks_of_a_stage_are_found_by_their_names_in_the_whole_model(family: str, blocks: str) -> None:
    from muster_components.trainer.parallel.call_graph import find_blocks

    module = build_family(family)
    assert len(find_blocks(module)) == 6
    first, second, _ = split(module, family_batch(family), [1, 2, 3])
    assert list(find_blocks(first)) == [f"{blocks}.0"]
    assert list(find_blocks(second)) == [f"{blocks}.1", f"{blocks}.2"]


def test_a_model_without_repeated_blocks_is_refused() -> None:
    import torch
    from torch import nn

    with pytest.raises(InputError, match="Sequential has no repeated blocks"):
        split(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {"input": torch.zeros(1, 2)}, [1, 1])


@pytest.mark.parametrize("blocks", [[6, 0], [3, 2], [1, 2, 4]])
def test_stages_without_blocks_or_with_blocks_left_over_are_refused(blocks: list[int]) -> None:
    module, batch = small_model("plain")
    with pytest.raises(InputError, match="must have at least 1, all together 6"):
        split(module, batch, blocks)


def test_another_micro_batch_than_the_recorded_one_is_refused() -> None:
    import torch

    module, batch = small_model("plain")
    first, _ = split(module, batch, [3, 3])
    with pytest.raises(
        TrainerError, match=r"blocks\.2 returned torch\.float32 \(5, 8\) instead of torch\.float32 \(3, 8\)"
    ):
        first(x=torch.zeros(5, 4))


@pytest.mark.parametrize("change", ["compile", "recompute"])
def test_the_blocks_of_a_stage_may_be_compiled_or_recomputed(change: str) -> None:
    import functools

    import torch
    from torch.utils.checkpoint import checkpoint

    from muster_components.trainer.parallel.call_graph import find_blocks

    module, batch = build_family("llama"), family_batch("llama")
    whole = family_loss(module(**batch))
    torch.autograd.backward(whole)
    stages = split(module, batch, [3, 3])
    blocks = [block for stage in stages for block in find_blocks(stage).values()]
    assert len(blocks) == 6
    for block in blocks:
        if change == "compile":
            block.compile(fullgraph=True, dynamic=False, backend="aot_eager")
        else:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    torch.testing.assert_close(run_stages(stages, batch, family_loss), whole.detach())
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close(summed_gradients(module, stages), gradients)
