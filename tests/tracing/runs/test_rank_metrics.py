"""The newest steps of one rank, as pages read them again and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.tracing.runs import run_folder
from muster.tracing.runs.run_folder import read_rank_metrics


def test_only_whole_lines_within_the_last_bytes_of_a_large_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(100, 200)]
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank-0.jsonl").write_text("".join(lines))
    monkeypatch.setattr(run_folder, "MAX_TAIL_BYTES", 3 * len(lines[0]) + 5)
    metrics = read_rank_metrics(tmp_path)
    assert metrics is not None
    assert metrics.step.tolist() == [197, 198, 199]
    monkeypatch.setattr(run_folder, "MAX_TAIL_BYTES", 100 * len(lines[0]))
    metrics = read_rank_metrics(tmp_path)
    assert metrics is not None
    assert metrics.step.tolist() == list(range(100, 200))
