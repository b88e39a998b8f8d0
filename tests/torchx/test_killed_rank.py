"""A rank that is killed within a step: its job restarts, and trains as if nothing had happened."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torchx.runner import get_runner

from muster.cli.views.goodput import job_goodput
from muster.local.client import LocalClient
from muster.usage.time_spent import time_spent
from muster.workload.conditions import has_terminated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch"),  # not imported: that takes seconds
]

MODULE = """
import os, signal, time
from torch import nn

class Numbers:
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return {"x": [float(i % 7), float(i % 3)], "y": [float(i % 5)]}

class Model(nn.Module):
    def __init__(self, killed):
        super().__init__()
        self.linear, self.killed, self.steps = nn.Linear(2, 1), killed, 0
    def forward(self, x, y):
        self.steps += 1
        if self.killed and os.environ["MUSTER_ATTEMPT"] == "0" and os.environ["RANK"] == "1" and self.steps == 7:
            while "of step 6 is in host memory only" not in open(os.environ["MUSTER_RUN_DIR"] + "/events.jsonl").read():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return (self.linear(x) - y).square().mean()
"""


def test_a_job_with_a_rank_that_is_killed_within_a_step_continues_from_a_checkpoint_in_memory(
    client: LocalClient, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numbers_of_user.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    jobs = {killed: submit(home, killed) for killed in (True, False)}
    runs = {}
    for killed, job in jobs.items():
        while not has_terminated(client.job(job).status):
            time.sleep(0.1)
        status, runs[killed] = client.job(job).status, client.run_dir(job)
        assert (status.phase, status.restarts) == ("Succeeded", int(killed)), status
        spent = time_spent(client.job(job), time.time())
        found = job_goodput(client, client.job(job), time.time()).seconds
        assert sum(found.values()) == pytest.approx(sum(spent.values()) / 1000), "each second has one cause"
        assert found["productive"] > 0
        assert found["start"] > 0
        assert ("recovery" in found) == killed, found
    (resumed,) = (event for event in lines_of(runs[True] / "events.jsonl") if event["kind"] == "resumed")
    assert resumed["step"] in (4, 6)  # the kill may come while step 6 is marked as whole
    attempts, losses = {}, {}
    for line in lines_of(runs[True] / "metrics" / "rank-0.jsonl"):
        attempts[line["step"]], losses[line["step"]] = line["attempt"], line["loss"]
    assert attempts == {step: int(step > resumed["step"]) for step in range(1, 13)}
    undisturbed = {line["step"]: line["loss"] for line in lines_of(runs[False] / "metrics" / "rank-0.jsonl")}
    assert losses == pytest.approx(undisturbed, rel=1e-6)


def submit(home: Path, killed: bool) -> str:
    arguments = (
        "-j 1x2 --model numbers_of_user:Model --data numbers_of_user:Numbers --steps 12 --global_batch 4"
        " --checkpoint_every 2 --compile False -- --checkpoint_write_every 0 --checkpoint_memory 1GiB"
        f" --model_args killed={killed}"
    )
    with get_runner(muster_home=str(home)) as runner:
        handle = runner.run_component("muster.train.fsdp", arguments.split(), "muster_local")
    return str(handle.rpartition("/")[2])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
