"""The benchmark of backends runs on a CPU, and its columns train the same model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.backends import loss_difference, table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "backends.py"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["char", "lstm", "resnet50", "vit"])
def test_the_trainer_and_a_plain_loop_have_the_same_losses(model: str, tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    command = [sys.executable, str(SCRIPT), "--tiny", "--model", model, "--backend", "eager", "--backend", "ours"]
    subprocess.run([*command, "--iterations", "2", "--warmup", "20", "--json", str(file)], check=True)
    eager, ours = map(json.loads, file.read_text().splitlines())
    assert (eager["backend"], ours["backend"]) == ("eager", "ours")
    assert len(eager["losses"]) == 20
    assert min(eager["losses"]) < eager["losses"][0] - 0.001  # it learns
    difference = loss_difference(ours["losses"], eager["losses"])
    assert difference is not None
    assert difference < 1e-3


def test_the_table_compares_losses_with_those_of_eager_if_they_were_measured() -> None:
    cell = {"iterations": 3, "mean_ms": 1.5, "stdev_ms": 0.1, "mfu": 0.5, "peak_gib": 2.0, "first_step_s": 1.0}
    ours = {"model": "vit", "backend": "ours", "losses": [2.0, 1.5], **cell}
    eager = {"model": "vit", "backend": "eager", "losses": [2.0, 1.25], **cell}
    assert table([ours, eager]).splitlines()[-1].endswith("0.2500")
    assert table([ours]).splitlines()[-1].endswith("1.0         ")
