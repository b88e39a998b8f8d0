"""TorchTitan runs, is stopped and goes on, on two ranks without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="`make frameworks` installs torchtitan"),
]
STEPS = 14
FLAGS = (
    "--experimental.custom_import=synthetic", "--model.name=synthetic", "--model.flavor=tiny",
    "--activation_checkpoint.mode=none", "--optimizer.implementation=foreach", "--metrics.log_freq=1",
    "--training.seq_len=16", "--training.local_batch_size=2", "--checkpoint.interval=1000", "--debug.seed=1",
)  # fmt: skip


def start(run_dir: Path, flags: Sequence[str], attempt: int = 0, **variables: str) -> subprocess.Popen[bytes]:
    run_dir.mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))),
        "OMP_NUM_THREADS": "1",
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_JOB": "titan",
        "MUSTER_ATTEMPT": str(attempt),
        "MUSTER_GRACE_SECONDS": "600",
        **variables,
    }
    command = ["-m", "muster_components.launch", "--nproc", "2", "--", "-m", "muster_components.titan"]
    return subprocess.Popen([sys.executable, *command, *FLAGS, *flags], env=environ)


def lines(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = run_dir / "metrics" / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run_dir: Path, rank: int = 0) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(run_dir, rank)}


def heartbeat(run_dir: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "heartbeats" / f"rank-{rank}.json").read_text())
    return found


def test_a_stopped_run_saves_after_the_same_step_on_all_ranks_and_goes_on_as_if_it_had_not_been_stopped(
    tmp_path: Path,
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert start(whole, [f"--training.steps={STEPS}"]).wait() == 0
    flags = [f"--training.steps={STEPS}", "--checkpoint.enable", "--checkpoint.async_mode=async"]
    first = start(run, flags, STEP_SECONDS="1")
    while first.poll() is None and len(lines(run)) < 3:
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 143
    stopped = heartbeat(run)["step"]
    assert 3 <= stopped < STEPS - 4
    assert [heartbeat(run, rank)["step"] for rank in range(2)] == [stopped, stopped]
    found = json.loads((run / "checkpoint.json").read_text())
    assert (found["step"], found["path"]) == (stopped, str(run / "outputs" / "checkpoint" / f"step-{stopped}"))

    assert start(run, flags, attempt=1, MUSTER_TRACE_STEPS=f"{STEPS - 3}:{STEPS - 1}").wait() == 0
    assert [line["step"] for line in lines(run)] == list(range(1, STEPS + 1))
    assert losses(run) == losses(run, 1) == pytest.approx(losses(whole))
    last = heartbeat(run)
    assert (last["step"], last["steps"], last["phase"], last["eta_s"]) == (STEPS, STEPS, "done", 0)
    assert last["tokens_per_s"] == pytest.approx(64 / last["step_time_s"])
    traces = sorted(path.name for path in (run / "traces" / "spool").iterdir())
    assert traces == [f"rank-{rank}.attempt-1.steps-{STEPS - 3}-{STEPS - 1}.json" for rank in range(2)]


def test_rank_0_reports_the_loss_that_only_the_last_stage_of_a_pipeline_knows(tmp_path: Path) -> None:
    flags = ["--training.steps=2", "--parallelism.pipeline_parallel_degree=2"]
    assert start(tmp_path, flags).wait() == 0
    assert losses(tmp_path) == losses(tmp_path, 1)
    assert all(4 < loss < 8 for loss in losses(tmp_path).values())
    assert len(losses(tmp_path)) == 2
