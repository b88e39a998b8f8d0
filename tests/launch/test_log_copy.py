"""The copy of a pod's log in the run folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.conftest import Pod

from muster_components.launch.rank_process import LogCopy


@pytest.mark.slow
def test_on_kubernetes_the_log_is_copied_and_on_one_host_it_is_not(start: Callable[..., Pod], tmp_path: Path) -> None:
    run = {"MUSTER_RUN_DIR": str(tmp_path / "run"), "MUSTER_ROLE": "worker", "MUSTER_REPLICA": "0"}
    pod = start("print('hello', rank)", "--nproc", "1", **run, MUSTER_REPLICAS="1", MUSTER_ATTEMPT="3")
    code, log = pod.end()
    assert code == 0
    assert (tmp_path / "run" / "logs" / "worker-0.attempt-3.log").read_text() == log
    assert "hello 0" in log
    local = start("print('hello')", "--nproc", "1", **run, MUSTER_ATTEMPT="4", MUSTER_FAILURE_FILE=str(tmp_path / "f"))
    assert local.end()[0] == 0
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 1


def test_at_its_limit_the_copy_keeps_its_newest_lines_and_says_so(tmp_path: Path) -> None:
    copy = LogCopy(tmp_path / "logs" / "a.log", limit=100)
    for number in range(12):
        copy.write(f"line {number:03}\n".encode())
    assert (tmp_path / "logs" / "a.log").read_text() == (
        "muster: 81 bytes of this log were dropped; the limit is 100\nline 009\nline 010\nline 011\n"
    )


def test_a_link_or_a_folder_in_place_of_the_copy_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    os.symlink(tmp_path / "kept", tmp_path / "link.log")
    (tmp_path / "folder.log").mkdir()
    for name in ("link.log", "folder.log"):
        LogCopy(tmp_path / name).write(b"x")
    assert (tmp_path / "kept").read_text() == "kept"
