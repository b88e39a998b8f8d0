"""Gradients of each parameter with tensor parallelism equal those of the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Starter

pytestmark = pytest.mark.slow

COMPARE = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.transformer import Transformer, init_weights
from muster_components.trainer.parallel.gradients import local, redistributed
from muster_components.trainer.parallel.tensor import apply_tensor_parallelism

dist.init_process_group("gloo")
style, gpt2 = sys.argv[1], sys.argv[1] == "gpt2"
shape = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 4 if gpt2 else 2, "hidden": 64}
config = ModelConfig(name="small", style=style, bias=gpt2, tied=gpt2, **shape)
row = torch.randint(0, 256, (4, 17), generator=torch.Generator().manual_seed(1))
tokens, targets = row[:, :-1].contiguous(), row[:, 1:].contiguous()
models = []
for split in (False, True):
    with torch.device("meta"):
        model = Transformer(config, 16)
    if split:
        apply_tensor_parallelism(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    init_weights(model, torch.device("cpu"), 0)
    between_blocks = []
    model.blocks[0].register_forward_hook(lambda _module, _inputs, x_BLD: between_blocks.append(local(x_BLD).shape))
    with loss_parallel():
        model(tokens, targets).backward()
    assert between_blocks == [(4, 8 if split else 16, 32)]  # sequence parallelism
    models.append(model)
whole, parts = (dict(model.named_parameters()) for model in models)
assert whole.keys() == parts.keys()
for name, part in parts.items():
    gradient = redistributed(part.grad, part).full_tensor()
    torch.testing.assert_close(gradient, whole[name].grad, rtol=1e-4, atol=1e-5 * whole[name].grad.abs().max().item())
assert parts["embed.weight"].to_local().shape == (128, 32)
assert parts["blocks.0.attention.out.weight"].to_local().shape == (32, 16)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("style", ["modern", "gpt2"])
def test_gradients_equal_those_of_the_whole_model(start: Starter, tmp_path: Path, style: str) -> None:
    """With shared key-value heads; with biases, learned positions and tied embedding."""
    (tmp_path / "compare.py").write_text(COMPARE)
    ranks = start(2, style, module="compare")
    assert ranks.end() == [0, 0], ranks.log_text()
    assert "could not be resolved" not in ranks.log_text()
