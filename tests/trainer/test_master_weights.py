"""bf16 weights with float32 masters: names and ties of the module, sums in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from muster_components.trainer.parallel.master_weights import MasterWeights

pytestmark = pytest.mark.slow  # imports torch


class Tied(nn.Module):
    """Two layers with one matrix, a norm and a float32 buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.linspace(0, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)))  # type: ignore[no-any-return]


def test_masters_keep_names_ties_and_buffers_and_the_module_computes_in_bf16() -> None:
    module = Tied()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    masters = MasterWeights(module).masters
    assert module.first.weight is module.second.weight
    assert module(torch.zeros(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert module.table.dtype == torch.float32
    assert [name for name, _ in masters.named_parameters()] == ["first.weight", "norm.weight", "norm.bias"]
    for name, value in masters.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.dtype == torch.float32


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """In bf16, 256 + 1 is 256."""
    module = nn.Linear(1, 1, bias=False)
    masters = MasterWeights(module)
    for value in (256.0, 1.0, 1.0):
        module(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
        masters.collect_gradients()
        assert module.weight.grad is None
    (master,) = masters.masters.parameters()
    assert master.grad is not None
    assert master.grad.item() == 258.0


def test_an_update_too_small_for_bf16_is_kept_in_the_master() -> None:
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(1.0)
    masters = MasterWeights(module)
    (master,) = masters.masters.parameters()
    for _ in range(4):
        master.data.add_(2**-9)
        masters.publish()
    assert master.item() == 1 + 2**-7
    assert module.weight.item() == 1 + 2**-7


def test_batch_normalization_of_a_bf16_model_keeps_float32_weights_beside_its_float32_statistics() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    masters = MasterWeights(module)
    output = module(torch.randn(4, 1, 2, 2, dtype=torch.bfloat16))
    output.square().sum().backward()
    masters.collect_gradients()
    assert output.dtype == torch.bfloat16
    assert module[1].weight.dtype == module[1].running_mean.dtype == torch.float32
    assert all(master.grad is not None for master in masters.masters.parameters())
