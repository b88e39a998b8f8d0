"""Batch normalization under FSDP2 in bf16: weights in bf16, statistics in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # imports torch


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.usefixtures("one_rank")
def test_batch_norm_computes_statistics_in_float32_and_trains_with_fsdp_in_bf16(backend: str | None) -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from muster_components.trainer.compilation.backends import compile_in_place
    from muster_components.trainer.parallel.gradients import local
    from muster_components.trainer.parallel.sharding import use_float32_in_batch_norms

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8, affine=False))
    expected = copy.deepcopy(module)
    expected[0].bfloat16()  # and weight 1 and bias 0 of the normalization, which are the same in bf16
    names = [name for name, _ in module.named_parameters()]
    use_float32_in_batch_norms(module)
    if backend is not None:
        compile_in_place(module, backend)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)

    image, direction = torch.randn(4, 3, 8, 8), torch.randn(4, 8, 6, 6)
    output = module(image.bfloat16())
    (output.float() * direction).sum().backward()
    theirs = expected(image.bfloat16())
    (theirs.float() * direction).sum().backward()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, theirs)
    assert [name for name, _ in module.named_parameters()] == names
    for ours, wanted in zip(module.buffers(), expected.buffers(), strict=True):
        assert ours.dtype == wanted.dtype  # float32, and an integer for the number of batches
        torch.testing.assert_close(ours, wanted)
    for parameter, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert parameter.grad is not None
        assert wanted.grad is not None
        assert parameter.grad.dtype == torch.float32
        error = (local(parameter.grad) - wanted.grad).norm()
        assert error <= 0.02 * wanted.grad.norm() + 0.1  # gradients of bf16 weights are rounded
