"""A job that is stopped by `muster cancel` or by its time limit saves a checkpoint in its grace period."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from torchx.runner import get_runner

from muster.api.spec import ObjectMeta, TrainingJob
from muster.local.client import LocalClient
from muster.workload.conditions import has_terminated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch"),  # not imported: that takes seconds
]


def cancel(client: LocalClient, job: TrainingJob) -> None:
    client.cancel(job.metadata.name)


def end_its_time(client: LocalClient, job: TrainingJob) -> None:
    spec = job.spec.model_copy(update={"max_runtime_seconds": 1})
    client.apply([TrainingJob(metadata=ObjectMeta(name=job.metadata.name, namespace="default"), spec=spec)])


@pytest.mark.parametrize(
    ("stop", "phase", "reason"),
    [(cancel, "Cancelled", "Cancelled"), (end_its_time, "Failed", "MaxRuntimeExceeded")],
)
def test_a_stopped_job_saves_its_last_step_within_the_grace_period(
    client: LocalClient,
    home: Path,
    tmp_path: Path,
    stop: Callable[[LocalClient, TrainingJob], None],
    phase: str,
    reason: str,
) -> None:
    (tmp_path / "text").write_text("to be or not to be " * 500)
    arguments = "--model gpt:1m --steps 1000000 --checkpoint_every 0 --seq_len 32 --global_batch 4 --compile False"
    with get_runner(muster_home=str(home)) as runner:
        handle = runner.run_component(
            "muster.train.fsdp", ["-j", "1x2", "--data", str(tmp_path / "text"), *arguments.split()], "muster_local"
        )
    name = handle.rpartition("/")[2]
    wait_for(lambda: any(heartbeat["step"] >= 3 for heartbeat in client.heartbeats(name)))
    assert client.job(name).status.last_checkpoint is None
    stop(client, client.job(name))
    wait_for(lambda: has_terminated(client.job(name).status))
    status, run_dir = client.job(name).status, client.run_dir(name)
    assert status.phase == phase
    assert any(condition.reason == reason for condition in status.conditions)
    saved = json.loads((run_dir / "checkpoints" / "latest").read_text())
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics" / "rank-0.jsonl").read_text().splitlines()]
    assert saved["step"] == max(steps) >= 3
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.step == saved["step"]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until the timeout of the test."""
    while not condition():
        time.sleep(0.1)
