"""What the trainer adds to torch's snapshots of GPU memory: which storage is what."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # imports torch

from muster_components.trainer import memory_snapshot  # noqa: E402
from muster_components.trainer.memory_snapshot import known_tensors, write_memory_snapshot  # noqa: E402


def test_parameters_gradients_and_the_state_of_optimizers_are_named_by_the_addresses_of_their_storages() -> None:
    model = torch.nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    found = {tensor["address"]: (tensor["category"], tensor["bytes"]) for tensor in known_tensors("cpu")}
    assert found[model.weight.data_ptr()] == ("parameter", 48)
    assert found[model.weight.grad.data_ptr()] == ("gradient", 48)
    assert found[state["exp_avg"].data_ptr()] == ("optimizer_state", 48)
    assert found[state["exp_avg_sq"].data_ptr()] == ("optimizer_state", 48)
    assert known_tensors("cuda") == []


def test_a_view_is_named_by_its_storage_and_tensors_without_memory_are_left_out() -> None:
    whole = torch.zeros(8)
    model = torch.nn.Module()
    model.part = torch.nn.Parameter(whole[4:])
    model.empty = torch.nn.Parameter(torch.zeros(0))
    model.none = None
    model.meta = torch.nn.Parameter(torch.zeros(5, device="meta"))
    found = {tensor["address"]: tensor["bytes"] for tensor in known_tensors("cpu")}
    assert found[whole.data_ptr()] == 32
    assert 0 not in found


def test_an_optimizer_that_is_not_like_torchs_is_left_out() -> None:
    model = torch.nn.Linear(1, 1)
    broken = torch.optim.SGD([torch.zeros(1)])
    broken.param_groups = None
    assert model.weight.data_ptr() in {tensor["address"] for tensor in known_tensors("cpu")}
    del broken


def test_the_snapshot_that_is_written_is_torchs_with_the_known_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, Any] = {"segments": [], "device_traces": []}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: dict(taken))
    monkeypatch.setattr(memory_snapshot, "stop_memory_history", lambda: None)
    path = tmp_path / "memory" / "rank-0.pickle"
    write_memory_snapshot(path)
    assert pickle.loads(path.read_bytes()) == taken | {"muster": {"tensors": known_tensors("cuda")}}
    assert [file.name for file in path.parent.iterdir()] == ["rank-0.pickle"]
