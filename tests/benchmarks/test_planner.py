"""The planner's benchmark runs, in each of its cases."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("case", ["mix", "crowd", "fill", "reclaim"])
def test_the_benchmark_of_the_planner_runs_on_a_small_cluster(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--case", case, "--nodes", "20", "--gangs", "20", "--queues", "4", "--rounds", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["planner.py", *arguments])
    monkeypatch.syspath_prepend(BENCHMARKS)
    runpy.run_path(str(BENCHMARKS / "planner.py"), run_name="__main__")
    assert json.loads(capsys.readouterr().out)
