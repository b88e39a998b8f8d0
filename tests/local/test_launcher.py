"""Killing processes by their environment."""

from __future__ import annotations

import os
import subprocess

import pytest

from muster.local.launcher import Process, kill_matching


def test_processes_that_do_not_end_leak_no_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "send_signal", lambda process, number: None)  # as one that waits for a disk
    value = os.urandom(8).hex()
    passes = 0

    def matches(variables: frozenset[bytes]) -> bool:
        nonlocal passes
        found = f"MUSTER_TEST={value}".encode() in variables
        passes += found
        if passes == 20:
            process.kill()
        return found

    with subprocess.Popen(["sleep", "1000"], env={"MUSTER_TEST": value}) as process:
        before = set(os.listdir("/proc/self/fd"))
        try:
            assert kill_matching(matches) == 1
            assert set(os.listdir("/proc/self/fd")) <= before
        finally:
            process.kill()
