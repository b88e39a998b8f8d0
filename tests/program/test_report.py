"""`muster.report`, in processes of their own: what they write depends on the environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import muster


def run(source: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    command = [sys.executable, "-c", source]
    return subprocess.run(
        command, env={**clean, **environ}, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


def test_outside_a_job_nothing_is_written_and_no_signal_is_handled(tmp_path: Path) -> None:
    source = """
import signal, muster
muster.report(step=1, steps=2, loss=0.5, checkpoint="out")
assert muster.should_stop() is None
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    assert run(source, tmp_path).stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_import_muster_imports_nothing_else(tmp_path: Path) -> None:
    source = """
import sys
before = set(sys.modules)
import muster
assert set(sys.modules) - before == {"muster"}, set(sys.modules) - before
muster.report, muster.should_stop
foreign = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
assert foreign == {"muster"}, foreign
"""
    assert run(source, tmp_path).stderr == ""


def test_values_between_two_lines_are_combined_and_the_last_ones_are_written(tmp_path: Path) -> None:
    source = """
import muster
for step in range(1, 1001):
    muster.report(step=step, **({"steps": 1000, "tokens": 64} if step == 1 else {"loss": step / 2}))
"""
    file = tmp_path / "reports" / "r.jsonl"
    assert run(source, tmp_path, MUSTER_RUN_DIR=str(tmp_path), MUSTER_REPORT_FILE=str(file)).returncode == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (lines[0]["step"], lines[0]["steps"], lines[0]["tokens"]) == (1, 1000, 64)
    assert (lines[-1]["step"], lines[-1]["loss"]) == (1000, 500.0)


def test_without_a_launcher_the_heartbeat_is_written(tmp_path: Path) -> None:
    source = "import muster; muster.report(step=7, steps=9, loss=float('nan')); muster.report(step=8, checkpoint='out')"
    environ = {"MUSTER_RUN_DIR": str(tmp_path), "RANK": "1", "WORLD_SIZE": "2", "MUSTER_ATTEMPT": "4"}
    assert run(source, tmp_path, **environ).stderr == ""
    heartbeat = json.loads((tmp_path / "heartbeats" / "rank-1.json").read_text())
    assert (heartbeat["step"], heartbeat["steps"], heartbeat["loss"], heartbeat["checkpoint_step"]) == (8, 9, None, 8)
    assert (heartbeat["rank"], heartbeat["world_size"], heartbeat["attempt"]) == (1, 2, 4)


def test_a_run_folder_that_cannot_be_written_does_not_stop_the_program(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    missing = str(tmp_path / "file" / "reports" / "r.jsonl")
    ended = run("import muster; muster.report(step=1)", tmp_path, MUSTER_RUN_DIR="x", MUSTER_REPORT_FILE=missing)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 1.5}, r"step must be an integer; got 1.5"),
        ({"steps": -1}, r"steps must be at least 0; got -1"),
        ({"loss": "low"}, r"loss must be a number; got 'low'"),
        ({"checkpoint": "out"}, r"checkpoint must be reported with its step"),
    ],
)
def test_a_value_of_another_kind_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        muster.report(**values)  # type: ignore[arg-type]


def test_the_version_is_that_of_the_installed_package() -> None:
    assert muster.__version__ == importlib.metadata.version("muster")
