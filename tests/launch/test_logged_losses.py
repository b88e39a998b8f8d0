"""The loss of programs that report none, from what they log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from muster_components.launch.event_files import Scalar
from muster_components.launch.logged_losses import LoggedLosses, loss_tag

from .conftest import Pod
from .event_records import WANDB_FILE, log

Start = Callable[..., Pod]


@pytest.mark.parametrize(
    ("tags", "chosen"),
    [
        (["val/loss", "train/loss", "loss"], "train/loss"),
        (["lr", "Loss/train", "Loss/test"], "Loss/train"),
        (["eval_loss", "loss_metrics/global_avg_loss", "loss_metrics/global_max_loss"], "loss_metrics/global_avg_loss"),
        (["test-loss", "validation loss", "lr"], None),
        (["train_loss_step", "train_loss_epoch"], "train_loss_step"),
        (["lm loss validation", "lm loss"], "lm loss"),
        ([], None),
    ],
)
def test_the_training_loss_is_found_by_its_tag(tags: list[str], chosen: str | None) -> None:
    assert loss_tag(tags) == chosen


def test_only_files_that_the_process_or_its_children_write_count(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        log(tmp_path / "runs" / "other", os.getppid(), loss=(90, 9.0))
        log(tmp_path / "runs" / "child", child.pid, loss=(4, 2.0), lr=(5, 0.1))
        (tmp_path / "link").symlink_to(tmp_path / "runs")
        losses = LoggedLosses((tmp_path,), os.getpid())
        assert losses.newest(0.0) == Scalar("loss", 4, 2.0)
        assert losses.newest(1.0) is None
    finally:
        child.communicate(b"\n")


def test_the_copy_of_the_code_of_a_run_is_not_searched(tmp_path: Path) -> None:
    """It may have as many names as are searched in all."""
    code = tmp_path / "run" / "submission" / "code"
    for folder in range(6):
        (code / str(folder)).mkdir(parents=True)
        for number in range(900):
            (code / str(folder) / str(number)).touch()
    log(tmp_path / "work" / "out" / "tb" / "0", os.getpid(), loss=(4, 2.0))
    assert LoggedLosses((tmp_path / "run", tmp_path / "work"), os.getpid()).newest(0.0) == Scalar("loss", 4, 2.0)


@pytest.mark.parametrize("is_own", [True, False])
def test_the_run_of_wandb_counts_if_its_log_names_the_process(tmp_path: Path, is_own: bool) -> None:
    run = tmp_path / "wandb" / "offline-run-20261129_100933-zr5rnb7u"
    (run / "logs").mkdir(parents=True)
    (run / "run-zr5rnb7u.wandb").write_bytes(WANDB_FILE)
    pid = os.getpid() if is_own else os.getppid()
    (run / "logs" / "debug.log").write_text(
        f"2026-11-29 10:09:33,688 INFO    MainThread:{pid} [wandb_setup.py:_flush():81] Current SDK version is 0.31.0\n"
    )
    expected = Scalar("train/loss", 2, 1 / 3) if is_own else None
    assert LoggedLosses((tmp_path,), os.getpid()).newest(0.0) == expected


SCRIPT = """
sys.path.insert(0, REPOSITORY)
from pathlib import Path
from tests.launch.event_records import log
log(Path("runs/mine"), os.getpid(), loss=(40, 2.5))
while not os.path.exists("end"):
    time.sleep(0.05)
""".replace("REPOSITORY", repr(str(Path(__file__).parents[2])))


def test_a_program_that_only_logs_has_its_step_and_loss_in_its_heartbeat(start: Start, tmp_path: Path) -> None:
    pod = start(SCRIPT, MUSTER_RUN_DIR=str(tmp_path / "run"))
    file = tmp_path / "run" / "heartbeats" / "rank-0.json"
    pod.await_file(file)
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["loss"]) == (40, 2.5)
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0


def test_what_a_program_reports_counts_before_what_it_logs(start: Start, tmp_path: Path) -> None:
    reporting = "import muster; muster.report(step=3, loss=1.5)\n"
    pod = start(reporting + SCRIPT, MUSTER_RUN_DIR=str(tmp_path / "run"))
    file = tmp_path / "run" / "heartbeats" / "rank-0.json"
    pod.await_file(file)
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["loss"]) == (3, 1.5)


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="`make frameworks` installs tensorboard")
def test_an_instrumented_script_with_a_summary_writer_has_its_loss_beside_its_own_steps(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        """
import os, time, torch
from torch.utils.tensorboard import SummaryWriter
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
with SummaryWriter() as writer:
    for step in range(3):
        weight.square().sum().backward()
        optimizer.step()
        writer.add_scalar("Loss/train", 0.5 + step, 1000 + step)
    writer.flush()
    while not os.path.exists("end"):
        time.sleep(1.1)
        optimizer.step()
"""
    )
    pod = start(
        "os.execv(sys.executable, [sys.executable, '-m', 'muster_components.trainer.instrument', 'train.py'])",
        MUSTER_RUN_DIR=str(tmp_path / "run"),
    )
    file = tmp_path / "run" / "heartbeats" / "rank-0.json"
    pod.await_file(file)
    while (heartbeat := json.loads(file.read_text()))["loss"] is None:
        assert pod.process.poll() is None, pod.log_text()
        time.sleep(0.05)
    assert heartbeat["loss"] == 2.5
    assert 0 < heartbeat["step"] < 1000
    (tmp_path / "end").touch()
    assert pod.end()[0] == 0
