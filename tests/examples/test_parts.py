"""The programs that use one part of the trainer each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.examples.running import EXAMPLES

pytestmark = pytest.mark.slow
PARTS = EXAMPLES / "18-parts"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "TORCHINDUCTOR_"))}


def run(folder: Path, program: str) -> str:
    command = [sys.executable, str(PARTS / program)]
    environ = CLEAN | {"MUSTER_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("sample_order.py", "96 samples were read once"),
        ("checkpoints.py", "goes on after step 10"),
        ("memory.py", r"of 79 GiB, .* s a step: --parallel=fsdp=8 .*\n[1-9]\d* of \d+ plans fit"),
    ],
)
def test_the_program_shows_what_the_part_does(tmp_path: Path, program: str, output: str) -> None:
    pytest.importorskip("transformers")
    assert re.search(output, run(tmp_path, program), re.DOTALL)


@pytest.mark.compiles
def test_the_second_run_loads_what_the_first_compiled(tmp_path: Path) -> None:
    assert "compiled, saved" in run(tmp_path, "compiled_code.py")
    (tmp_path / "cache").rename(tmp_path / "other-machine")
    assert "loaded, nothing to save" in run(tmp_path, "compiled_code.py")


def test_all_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    launch = ["-m", "muster_components.launch", "--nproc", "2", "--", str(PARTS / "stop.py")]
    environ = CLEAN | {"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_GRACE_SECONDS": "600"}
    job = subprocess.Popen([sys.executable, *launch], stdout=subprocess.PIPE, text=True, env=environ)
    heartbeats = [tmp_path / "heartbeats" / f"rank-{rank}.json" for rank in range(2)]
    while not all(file.exists() for file in heartbeats) and job.poll() is None:  # both have called should_stop
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate()
    assert job.returncode == 143, out
    stopped = re.findall(r"rank (\d) saves and ends after step (\d+)", out)
    assert sorted(rank for rank, _ in stopped) == ["0", "1"], out
    assert len({step for _, step in stopped}) == 1
