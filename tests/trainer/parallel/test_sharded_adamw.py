"""The optimizer of sharded weights: it computes with shards, its state stays sharded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # imports torch


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_the_update_is_that_of_adamw_and_no_operator_of_it_gets_a_dtensor(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from muster_components.trainer.parallel.gradients import local
    from muster_components.trainer.train_step import ShardedAdamW

    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    sharded = copy.deepcopy(whole)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    fused: Any = torch._fused_adamw_
    seen: list[type] = []

    def record(params: list[Tensor], *args: object, **kwargs: object) -> None:
        lists = [params, *(arg for arg in args if isinstance(arg, list))]
        seen.extend(type(tensor) for tensors in lists for tensor in tensors)
        fused(params, *args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", record)
    expected = torch.optim.AdamW(whole.parameters(), lr=0.1, fused=True)
    optimizer = ShardedAdamW(sharded.parameters(), lr=0.1, fused=True)
    x = torch.randn(5, 8)
    for _ in range(3):
        for module, one in ((whole, expected), (sharded, optimizer)):
            module(x).square().mean().backward()
            one.step()
            one.zero_grad()
    assert seen
    assert not any(issubclass(kind, DTensor) for kind in seen)
    for theirs, ours in zip(whole.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(local(ours).detach(), theirs.detach())
        assert isinstance(optimizer.state[ours]["exp_avg"], DTensor)  # what checkpoints read
        torch.testing.assert_close(local(optimizer.state[ours]["exp_avg"]), expected.state[theirs]["exp_avg"])
