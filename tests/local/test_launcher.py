"""Killing processes by their environment."""

from __future__ import annotations

import os
import subprocess

import pytest

from muster.local import launcher
from muster.local.launcher import Process, kill_matching


def test_processes_that_cannot_be_killed_cost_no_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_KILL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(Process, "send_signal", lambda process, number: None)  # as one that waits for a disk
    marker = f"MUSTER_TEST={os.urandom(8).hex()}"
    name, _, value = marker.partition("=")
    with subprocess.Popen(["sleep", "1000"], env={name: value}) as process:
        before = os.listdir("/proc/self/fd")
        try:
            assert kill_matching(lambda variables: marker.encode() in variables) == 1
            assert len(os.listdir("/proc/self/fd")) == len(before)
        finally:
            process.kill()
