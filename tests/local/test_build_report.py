"""The child process that builds a job's report after its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("left", ["nothing", "a file where the report goes"])
def test_a_report_that_cannot_be_built_leaves_one_line_that_says_why(tmp_path: Path, left: str) -> None:
    if left != "nothing":
        (tmp_path / "metrics").mkdir()
        (tmp_path / "metrics/rank-0.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
        (tmp_path / "report").write_text("no folder")
    command = [sys.executable, "-m", "muster.local.reports", str(tmp_path), "llama", str(os.getpid())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert str(tmp_path) in line
