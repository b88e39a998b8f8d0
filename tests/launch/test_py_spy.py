"""Stacks by py-spy of ranks without a handler: read where it works, and why there are none where it does not."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.conftest import Pod

from muster.capture.stacks import collect_stacks
from muster_components.launch.stack_dumps import SpyDump, spy_dump

Start = Callable[..., Pod]
DUMP = """\
Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 8 (idle): "worker"
    get (/usr/lib/python3.11/queue.py:171)
Thread 7 (idle): "MainThread"
    wait (/usr/lib/python3.11/threading.py:320)
    step (/home/me/my train.py:7)
    <module> (/home/me/my train.py:9)
Thread 9 (active)
    native (extension.c:3)
"""


def test_the_frames_are_those_of_the_main_thread_innermost_first() -> None:
    frames = ("wait (/usr/lib/python3.11/threading.py:320)", "step (/home/me/my train.py:7)")
    assert SpyDump(DUMP).main_frames(2) == frames
    assert len(SpyDump(DUMP).main_frames(32)) == 3
    assert SpyDump("Thread 7 (idle)\n    hang (a.py:2)\n").main_frames(32) == ("hang (a.py:2)",)  # without threading
    assert SpyDump("nothing").main_frames(32) == ()


@pytest.mark.parametrize(
    ("script", "timeout_s", "reason"),
    [
        (None, 100.0, "py-spy is not installed"),
        ("echo 'Error: Permission Denied: Try with elevated rights' >&2; exit 1", 100.0, "py-spy: Permission"),
        ("exit 3", 100.0, "py-spy: failed"),
        ("exec sleep 60", 0.5, "py-spy did not end within 0.5 s"),
    ],
)
def test_the_reason_says_why_there_are_no_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, timeout_s: float, reason: str
) -> None:
    if script is not None:
        program = tmp_path / "py-spy"
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = spy_dump(os.getpid(), timeout_s)
    assert found.text == ""
    assert found.reason.startswith(reason)


def require_py_spy() -> None:
    """Skip unless it is installed and may read another process of this user."""
    if shutil.which("py-spy") is None:
        pytest.skip("py-spy is not installed: pip install py-spy")
    with subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                          stdout=subprocess.PIPE) as other:  # fmt: skip
        assert other.stdout is not None
        other.stdout.readline()
        found = spy_dump(other.pid, 30.0)
        other.kill()
    if found.reason:
        pytest.skip(f"ptrace is not permitted: {found.reason}")


@pytest.mark.slow
def test_a_rank_without_a_handler_is_where_py_spy_sees_it(start: Start, tmp_path: Path) -> None:
    require_py_spy()
    run_dir = tmp_path / "run"
    program = """
    def hang():
        print("hangs", flush=True)
        time.sleep(1000)
    hang()
"""
    pod = start(program, "--nproc", "1", MUSTER_RUN_DIR=str(run_dir), MUSTER_STACKS_SECONDS="60")
    pod.await_line("hangs")
    (found,) = collect_stacks(run_dir, "s1", 0, lambda: True)
    assert found.reason == ""
    assert found.frames[0].startswith("hang (")
    assert "hang (" in (run_dir / found.file).read_text()
