"""Counts of collectives by process group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from muster_components.trainer.collective_counts import collective_counts


@pytest.fixture(params=["gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def one_rank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_each_collective_counts_once_in_its_group_however_many_devices_a_backend_serves() -> None:
    first, second = dist.new_group([0], group_desc="mesh_fsdp"), dist.new_group([0], group_desc="mesh_fsdp")
    before = collective_counts()
    for group, calls in ((first, 2), (second, 3), (None, 1)):
        for _ in range(calls):
            dist.all_reduce(torch.ones(1), group=group)
    after = collective_counts()
    assert {name: after[name] - before[name] for name in after} == {"mesh_fsdp": 5, "default_pg": 1}


def test_without_a_process_group_there_are_no_counts() -> None:
    assert not dist.is_initialized()
    assert collective_counts() == {}
