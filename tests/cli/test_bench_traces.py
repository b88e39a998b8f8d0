"""`muster bench` with torch: step times of Muster's own records, and the operator that made a program slower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.suites import write_suite
from tests.cli.conftest import Muster

pytestmark = pytest.mark.slow
TRAINING = """\
import os
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    loss = model(torch.ones(8, 64)).square().mean()
    if os.environ.get("EXTRA"):
        loss = loss + torch.cumsum(torch.ones(10_000_000), 0).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SUITE = """\
criteria: {minRuns: 5, maxRuns: 5}
benchmarks:
- name: train
  command: [python, -m, muster_components.trainer.instrument, program.py]
  env: {OMP_NUM_THREADS: "1"}
  trace: {startStep: 5, steps: 3}
"""
COMPONENT = """\
criteria: {minRuns: 5, maxRuns: 5}
benchmarks:
- name: trainer
  component: muster.train.fsdp
  args: [-j, 1x1, --model, "gpt:1m", --data, text.txt, --steps, "6", --seq_len, "32", --global_batch, "2",
         --compile, "False"]
  env: {OMP_NUM_THREADS: "1"}
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, muster: Muster) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.chdir(home.parent)
    yield home
    muster("local", "down", "--force")


def test_the_operator_that_made_an_instrumented_script_slower_is_named(
    home: Path, tmp_path: Path, muster: Muster
) -> None:
    pytest.importorskip("torch")
    suite = str(write_suite(tmp_path, TRAINING, SUITE))
    ended = muster("bench", "compare", ".", "env:EXTRA=1", "--suite", suite, "--json")
    (row,) = ended.rows
    assert (ended.code, row["outcome"], row["error"]) == (5, "regression", "")
    new = {change["name"]: (change["kind"], change["bCalls"]) for change in row["changes"] if change["aCalls"] == 0}
    assert new["aten::cumsum"] == ("operator", 1)


def test_the_steps_of_a_component_of_the_trainer_are_the_iterations(home: Path, tmp_path: Path, muster: Muster) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    suite = str(write_suite(tmp_path, "", COMPONENT))
    (tmp_path / "text.txt").write_text("some text to train on, and some more. " * 200)
    ended = muster("bench", "run", suite, "--out", "r.jsonl", "--json")
    (row,) = ended.rows
    assert (ended.code, row["runs"], row["error"]) == (0, 5, "")
    assert row["metrics"]["wall"]["min"] > 0
    assert '"wall_s"' in Path("r.jsonl").read_text()
