"""Worker processes read data ahead of the steps, and change neither the order of samples nor a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED

from .conftest import SIGNALLED_IN_STEP_3, Starter, latest, losses

pytestmark = pytest.mark.slow

FLAGS = ("--model", "read:Model", "--data", "read:Data", "--global_batch", "4", "--steps", "6", "--no_compile")
READ = """
import os, pathlib, signal, time
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent

class Data:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        (HERE / f"read-{index}").touch()
        if index and "KILLED" in os.environ:  # the rank itself reads the shapes of sample 0
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": [float(index), 1.0]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
    def forward(self, x):
        until = time.monotonic() + float(os.environ.get("WAIT_S", 0))
        # Four of the first step, and sample 0, whose shapes are those of all.
        while "WAIT_S" in os.environ and len(list(HERE.glob("read-*"))) <= 5:
            assert time.monotonic() < until, "nothing was read ahead"
            time.sleep(0.01)
        return self.linear(x).square().mean()
"""


def test_samples_of_later_steps_are_read_while_a_step_computes(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(READ)
    ranks = start(1, *FLAGS, environ={"PYTHONPATH": str(tmp_path), "WAIT_S": "120"})
    assert ranks.end() == [EXIT_OK], ranks.log_text()


def test_workers_change_neither_the_samples_of_a_step_nor_those_after_a_resume(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(READ)
    (tmp_path / "signalled.py").write_text(SIGNALLED_IN_STEP_3)
    alone = start(2, *FLAGS, "--data_workers", "0", run_dir=tmp_path / "alone")
    assert alone.end() == [EXIT_OK] * 2, alone.log_text()
    run_dir = tmp_path / "workers"
    first = start(
        2, *FLAGS, "--data_workers", "3", "--parallel", "ddp", run_dir=run_dir, module="signalled",
        environ={"SIGNALLED_RANK": "0"},
    )  # fmt: skip
    assert first.end() == [EXIT_STOPPED] * 2, first.log_text()
    saved = latest(run_dir)
    assert saved is not None
    assert saved["step"] == 3
    second = start(1, *FLAGS, "--data_workers", "1", "--micro_batch", "2", run_dir=run_dir, attempt=1)
    assert second.end() == [EXIT_OK], second.log_text()
    assert losses(run_dir) == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


def test_a_worker_that_is_killed_ends_the_run(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(READ)
    ranks = start(1, *FLAGS, environ={"PYTHONPATH": str(tmp_path), "KILLED": "1"})
    assert ranks.end() == [EXIT_FAILED], ranks.log_text()
    assert "DataLoader worker" in ranks.log_text()
