"""Predictions against real runs of several ranks, and the trainer with --parallel auto and --plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.conftest import TINY, Starter, clean_environment, metrics
from tests.trainer.forked import Rank

from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_OK
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.planning.command import planner_for
from muster_components.trainer.planning.devices import parse_device

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_gradients_and_moments_are_exact(tmp_path: Path, ranks: int) -> None:
    """Over 3 ranks no parameter divides evenly; the first rank has the largest shards."""
    shape = ("--seq_len=32", "--global_batch=6", "--micro_batch=1", "--precision=fp32", "--no_compile")
    flags = ("--model", "gpt:1m", "--data", "unused", *shape)
    processes = []
    for rank in range(ranks):
        torchrun = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        environ = {**clean_environment(tmp_path), **torchrun, "STORE": str(tmp_path / "store")}
        log = tmp_path / f"{rank}.log"
        processes.append(Rank("tests.trainer.planning.sharded_states", flags, log, ROOT, environ))
    assert [process.wait(800) for process in processes] == [0] * ranks, (tmp_path / "0.log").read_text()
    measured = json.loads((tmp_path / "0.log").read_text().splitlines()[-1])
    host = HostCapabilities(device="cuda", world_size=ranks, has_compiler=True, has_bf16=True)
    config = parse_train_config(flags, {})
    planner, _, _ = planner_for(config, host, parse_device("h100"), ranks)
    prediction = planner.predict(resolve_plan(config, host))
    assert prediction is not None
    memory = prediction.memory
    assert memory.parameters == measured["parameters"]
    assert memory.optimizer == measured["optimizer"]
    assert memory.gradients == measured["gradients"]  # two micro-batches: they are there at the peak


@pytest.mark.smoke
def test_the_trainer_trains_what_the_planner_chose(start: Starter, text: Path) -> None:
    flags = (*TINY, "--data", str(text), "--steps", "2", "--parallel", "auto", "--device", "h100")
    ranks = start(2, *flags)
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert "plan: --parallel=" in ranks.log_text()
    assert [line["step"] for line in metrics(ranks.run_dir)] == [1, 2]


def test_a_plan_that_cannot_fit_ends_before_training(start: Starter, text: Path) -> None:
    flags = (*TINY, "--data", str(text), "--steps", "2", "--device", "h100:0.5GiB")
    ranks = start(2, *flags)
    assert ranks.end() == [EXIT_BAD_INPUT] * 2
    assert "trainer: the plan needs 2 GiB per GPU, 0 available" in ranks.log_text()
    assert not metrics(ranks.run_dir)


def test_auto_without_a_gpu_to_plan_for_is_the_default(start: Starter, text: Path) -> None:
    ranks = start(1, *TINY, "--data", str(text), "--steps", "2", "--parallel", "auto")
    assert ranks.end() == [EXIT_OK], ranks.log_text()
    assert [line["step"] for line in metrics(ranks.run_dir)] == [1, 2]


def test_a_plan_is_printed_as_a_table_and_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster_components.trainer", "--model", "gpt:1m", "--parallel", "auto"]
    command += ["--plan", "1x4", "--device", "a100", "--seq_len", "64"]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=True, env=clean_environment(tmp_path), cwd=tmp_path
    )
    plans = json.loads(done.stdout)
    assert plans[0]["fits"]
    assert plans[0]["step_s"] == min(plan["step_s"] for plan in plans if plan["fits"])
    assert sum(plans[0]["tensor_bytes"].values()) + plans[0]["reserved_bytes"] == pytest.approx(
        plans[0]["needed_bytes"], abs=10
    )
    assert not list(tmp_path.iterdir()), "a plan writes nothing"
