"""Starts the launcher as in a pod: a process with the environment of docs/reference/run-folder.md."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Pod:
    """A running launcher and its log file."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self, timeout_s: float = 600) -> tuple[int, str]:
        return self.process.wait(timeout_s), self.log_text()

    def log_text(self) -> str:
        return self.log.read_bytes().decode()

    def await_line(self, text: str, timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.log_text():
            assert time.monotonic() < deadline, f"no {text!r} in {self.log_text()!r}"
            time.sleep(0.02)

    def await_file(self, path: Path, timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < deadline, f"no {path} in {self.log_text()!r}"
            time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """start(script_source, "--nproc", "2", MUSTER_...=...) runs the script in a new launcher."""
    pods: list[Pod] = []

    def run(source: str, *options: str, args: tuple[str, ...] = (), **environ: str) -> Pod:
        script = tmp_path / f"script{len(pods)}.py"
        script.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(source))
        log = tmp_path / f"pod{len(pods)}.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "OMP_"))}
        command = [sys.executable, "-m", "muster_components.launch", *options, "--", str(script), *args]
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**clean, **environ}, cwd=tmp_path)
        pods.append(Pod(process, log))
        return pods[-1]

    yield run
    for pod in pods:
        while pod.process.poll() is None:  # the second signal kills the ranks at once
            pod.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
