"""Runs an example."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 1800


def run(example: str, *arguments: str, **environment: str) -> str:
    """Its standard output. The venv of this Python is first on PATH; after LIMIT_S its processes are terminated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", str(EXAMPLES / example / "run.sh"), *arguments],
        env=os.environ | {"PATH": path, "NO_COLOR": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # its trap stops the daemon and what it runs
        out, err = process.communicate(timeout=80)
        pytest.fail(f"not done after {LIMIT_S} s:\n{out}\n{err}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{out}\n{err}"
    return out
