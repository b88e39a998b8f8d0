"""Folders of killed launchers are removed by the next one on the machine, and no others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from muster_components.launch.scratch_folder import remove_left_folders

from .conftest import Pod

Start = Callable[..., Pod]
SLEEP = "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def launch_folders(parent: Path) -> list[Path]:
    return sorted(parent.glob("muster-launch-*"))


def await_content(pod: Pod, path: Path) -> int:
    pod.await_file(path)
    deadline = time.monotonic() + 600
    while not (text := path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(text)


def test_what_a_killed_launcher_left_is_removed_once_its_ranks_have_ended_too(start: Start, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    pid_file = tmp_path / "pid"
    killed = start(SLEEP, args=(str(pid_file),), TMPDIR=str(temporary))
    rank = await_content(killed, pid_file)
    (folder,) = launch_folders(temporary)
    killed.process.kill()
    killed.process.wait()
    try:
        assert start("pass", TMPDIR=str(temporary)).end()[0] == 0
        assert launch_folders(temporary) == [folder], "its rank still runs"
    finally:
        os.killpg(rank, signal.SIGKILL)
    deadline = time.monotonic() + 600
    while launch_folders(temporary):
        assert time.monotonic() < deadline
        assert start("pass", TMPDIR=str(temporary)).end()[0] == 0


def test_a_launcher_that_runs_keeps_its_folder_beside_others(start: Start, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    running = start(SLEEP, args=(str(tmp_path / "pid"),), TMPDIR=str(temporary))
    await_content(running, tmp_path / "pid")
    (folder,) = launch_folders(temporary)
    assert start("pass", TMPDIR=str(temporary)).end()[0] == 0
    assert launch_folders(temporary) == [folder]
    assert (folder / "rank-0.stacks.requests").exists() or any(folder.iterdir())


def test_folders_without_a_free_lock_of_their_own_stay(tmp_path: Path) -> None:
    no_lock, target, left = (tmp_path / name for name in ("muster-launch-a", "target", "muster-launch-left"))
    for folder in (no_lock, target, left):
        folder.mkdir()
        (folder / "file").touch()
    (target / "lock").touch()
    others = ("muster-launch-link", "muster-launch-file")
    (tmp_path / others[0]).symlink_to(target)
    linked = tmp_path / "muster-launch-linked-lock"
    linked.mkdir()
    (linked / "lock").symlink_to(target / "lock")
    fifo = tmp_path / "muster-launch-fifo"
    fifo.mkdir()
    os.mkfifo(fifo / "lock")
    (tmp_path / others[1]).touch()
    (left / "lock").touch()
    remove_left_folders(tmp_path)
    assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {no_lock.name, "target", linked.name, fifo.name, *others}
    assert (target / "file").exists()
