"""Counts of collectives by process group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from muster_components.trainer.collective_counts import collective_counts, mean_collective_bytes


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


@pytest.mark.usefixtures("one_rank")
def test_the_mean_size_is_that_of_the_larger_side_of_the_collectives_since_a_time() -> None:
    start = time.time()
    dist.all_reduce(torch.ones(10_000))
    since = time.time()
    assert mean_collective_bytes(since) is None
    dist.all_reduce(torch.ones(100))
    assert mean_collective_bytes(since) == 400
    dist.all_gather([torch.empty(300, dtype=torch.bfloat16)], torch.ones(300, dtype=torch.bfloat16))
    assert mean_collective_bytes(since) == 500
    assert mean_collective_bytes(start) == (40_000 + 400 + 600) / 3


def test_the_mean_size_is_unknown_if_a_type_is_and_calls_that_are_coalesced_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        {
            "process_group": ("0", "default_pg"), "collective_seq_id": call, "is_p2p": is_p2p, "time_created_ns": 5,
            "input_sizes": [[4, size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype],
        }
        for call, size, dtype, is_p2p in ((1, 10, "Half", False), (1, 20, "Half", False), (2, 900, "Float", True))
    ]  # fmt: skip
    monkeypatch.setattr(
        "muster_components.trainer.collective_counts.recorded_collectives", lambda: {"entries": entries}
    )
    assert mean_collective_bytes(0) == 4 * (10 + 20) * 2
    entries[0]["input_dtypes"] = ["QUInt4x2"]
    assert mean_collective_bytes(0) is None


def test_without_a_process_group_the_mean_size_is_unknown() -> None:
    assert mean_collective_bytes(0) is None
