"""Runs with --offload_activations: the losses of runs without it, on every mesh and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_OK

from .conftest import Starter, losses, write_text

pytestmark = pytest.mark.slow


def run(text: Path) -> tuple[str, ...]:
    """Feed-forward activations of more than a megabyte for two samples."""
    return ("--model", "gpt:1m", "--seq_len", "512", "--global_batch", "8", "--data", str(text), "--steps", "3")


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    folder = tmp_path_factory.mktemp("expected")
    starter = Starter(folder)
    ranks = starter(1, *run(write_text(folder)), "--no_compile")
    assert ranks.end() == [EXIT_OK], ranks.log_text()
    starter.kill_all()
    return losses(ranks.run_dir)


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (1, ("--no_compile", "--precision", "fp32")),
        (2, ("--no_compile", "--reshard", "always", "--micro_batch", "2")),
        (2, ("--backend", "aot_eager", "--activation_checkpointing", "selective")),
        (2, ("--no_compile", "--parallel", "pp=2", "--micro_batch", "4")),
    ],
    ids=lambda value: " ".join(value).replace("--", "") if isinstance(value, tuple) else f"{value} ranks",
)
def test_losses_are_those_of_a_run_without_it(
    start: Starter, text: Path, expected: dict[int, float], world_size: int, flags: tuple[str, ...]
) -> None:
    ranks = start(world_size, *run(text), *flags, "--offload_activations")
    assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
    assert "activations offloaded" in ranks.log_text()
    assert losses(ranks.run_dir) == pytest.approx(expected, abs=1e-4)


MOVED = """
import sys
import torch
import torch.distributed as dist
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.transformer import RecipeModel
from muster_components.trainer.parallel.activation_offload import ActivationOffload
from muster_components.trainer.parallel.mesh import build_mesh
from muster_components.trainer.parallel.sharding import parallelize
from muster_components.trainer.plan import HostCapabilities, resolve_plan

dist.init_process_group("gloo")
host = HostCapabilities(device="cpu", world_size=2, has_compiler=False, has_bf16=True)
flags = ["--model", "gpt:1m", "--data", "x", "--seq_len", "48", "--precision", "bf16", "--offload_activations"]
plan = resolve_plan(parse_train_config([*flags, *sys.argv[1:]], {}), host)
model = RecipeModel(plan.config.model, plan.seq_len)
parallel = parallelize(model, plan, torch.device("cpu"), build_mesh(plan.mesh, "cpu"))
(part,) = parallel.parts
sizes = {2 * parameter.numel() for parameter in part.model.parameters()}  # of the gathered bf16 weights
offload = ActivationOffload([part.module], torch.device("cpu"), min_bytes=1)
tokens = torch.arange(2 * 48).reshape(2, 48)
with offload.context():
    loss = part.module(tokens, tokens)
storages = [reference() for reference in offload._order]
moved = {storage._host.numel() for storage in storages if storage._host is not None}
assert len(moved) > 2, moved
assert 2 * 48 * 128 * 2 in moved  # hidden states
assert not moved & sizes, moved & sizes
loss.backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("flags", [("--no_compile",), ("--backend", "aot_eager")], ids=" ".join)
def test_weights_that_fsdp_has_gathered_are_not_moved(start: Starter, tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "moved.py").write_text(MOVED)
    ranks = start(2, *flags, module="moved")
    assert ranks.end() == [0, 0], ranks.log_text()
