"""The script of docs/tasks/preemptible.md under the launcher: stopped, resumed and done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.local.support import eventually

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("preemptible.py")


def launched(run_dir: Path, attempt: int, ranks: int, *arguments: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "OMP_"))}
    variables = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_ATTEMPT": str(attempt), "MUSTER_GRACE_SECONDS": "1200"}
    program = ["-m", "muster_components.trainer.instrument", str(SCRIPT), *arguments]
    command = [sys.executable, "-m", "muster_components.launch", "--nproc", str(ranks), "--", *program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean | variables)


def test_all_ranks_stop_after_the_same_step_and_resume_from_it(tmp_path: Path) -> None:
    file = tmp_path / "heartbeats" / "rank-0.json"
    first = launched(tmp_path, 0, 2, "1000000", "0.01")

    def steps_done() -> int:
        heartbeat = json.loads(file.read_text()) if file.exists() else {}
        assert first.poll() is None
        return int(heartbeat["step"]) if heartbeat.get("steps") == 1_000_000 else 0

    assert eventually(steps_done) > 0
    first.terminate()
    output, _ = first.communicate()
    stopped = re.findall(r"rank (\d) ends after step (\d+)", output)
    assert sorted(rank for rank, _ in stopped) == ["0", "1"], output
    assert len({step for _, step in stopped}) == 1
    step = int(stopped[0][1])
    assert first.returncode == 143
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["checkpoint_step"], heartbeat["phase"]) == (step, step, "done")
    assert heartbeat["loss"] is not None

    second = launched(tmp_path, 1, 1, str(step + 3), "0")  # of one rank: each imports torch for seconds
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert output.count(f"ends after step {step + 3}") == 1
    heartbeat = json.loads(file.read_text())
    assert (heartbeat["step"], heartbeat["optimizer_step"], heartbeat["attempt"]) == (step + 3, 3, 1)
