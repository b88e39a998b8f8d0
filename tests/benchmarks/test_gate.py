"""The benchmark of the regression gate, with few and short runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_the_missing_pairs_and_prints_the_rates_of_all_metrics(tmp_path: Path) -> None:
    out = tmp_path / "gate.jsonl"

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(ROOT / "benchmarks" / "gate.py"), "--out", str(out), *options]
        return subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)

    assert run("--table").stdout == ""
    first = run("--pairs", "1", "--min-runs", "5", "--max-runs", "5", "--slowdown", "2")
    assert re.search(r"\| median CPU time of a run's iterations \| \d, \d \| \d \| \+\d", first.stdout)
    (pair,) = map(json.loads, out.read_text().splitlines())
    assert (pair["blocks"], {arm: len(runs) for arm, runs in pair["runs"].items()}) == (
        5,
        {"A": 5, "A again": 5, "B": 5},
    )
    second = run("--pairs", "2", "--min-runs", "5", "--max-runs", "5")
    assert second.stderr.startswith("pair 2: 5 blocks in ")
    assert len(out.read_text().splitlines()) == 2
