"""What ranks leave in the launcher's memory is on the volume after they are killed, whole or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_components.trainer.checkpoint_manifest import read_digests, verify_files
from muster_components.trainer.checkpoint_store import CheckpointStore, read_description

from .conftest import Pod
from .saving_program import PEER, SAVES, pids, saved_by_all


@pytest.mark.parametrize("seed", range(4))
def test_after_sigkill_of_a_rank_at_a_random_moment_its_last_whole_save_is_on_the_volume(
    seed: int, start: Callable[..., Pod], tmp_path: Path
) -> None:
    chosen = random.Random(seed)
    pod = start(PEER + SAVES, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path))
    while len(pids(pod)) < 2:
        time.sleep(0.01)
    time.sleep(chosen.random() / 4)  # any moment will do
    before = saved_by_all(tmp_path)

    os.kill(pids(pod)[chosen.randrange(2)], signal.SIGKILL)
    code, log = pod.end()
    assert code == 128 + signal.SIGKILL, log
    (found,) = CheckpointStore(tmp_path / "checkpoints", 1, 0).candidates()
    assert found.step >= before, "the step that all ranks had saved before the kill, or a later one"
    described = read_description(found.path)
    files = read_digests(described)
    assert files is not None
    assert [file.name for file in files] == ["__0_0.distcp", "__1_0.distcp"]
    verify_files(found.path, files)
    for file in files:
        content = (found.path / file.name).read_bytes()
        assert content == found.step.to_bytes(8, "little") * (len(content) // 8), "of one step only"
    assert f"checkpoint of step {found.step} written from memory" in log
    assert json.loads((tmp_path / "checkpoints" / "latest").read_text())["step"] == found.step


def test_after_sigkill_of_the_launcher_what_is_on_the_volume_remains_and_nothing_else_is_read(
    start: Callable[..., Pod], tmp_path: Path
) -> None:
    pod = start(PEER + SAVES, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path))
    while len(pids(pod)) < 2:
        time.sleep(0.01)
    pod.process.kill()
    pod.end()

    for pid in pids(pod).values():
        os.kill(pid, signal.SIGKILL)
    assert CheckpointStore(tmp_path / "checkpoints", 1, 0).candidates() == []


def test_a_checkpoint_on_the_volume_that_is_as_new_is_not_written_again(
    start: Callable[..., Pod], tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 0, 2)
    store.begin(2_000_000)
    store.publish(2_000_000, {"step": 2_000_000, **store.origin()}, 1.0)
    pod = start(PEER + SAVES, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path))
    while len(pids(pod)) < 2:
        time.sleep(0.01)

    os.kill(pids(pod)[1], signal.SIGKILL)
    code, log = pod.end()
    assert code == 128 + signal.SIGKILL
    assert "written from memory" not in log
    assert [one.step for one in store.candidates()] == [2_000_000]


def test_launch_failure_and_end_are_recorded_in_the_run_folder(start: Callable[..., Pod], tmp_path: Path) -> None:
    pod = start("time.sleep(600 * rank)\nsys.exit(3)", "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path), MUSTER_ATTEMPT="2")
    assert pod.end()[0] == 3
    (file,) = (tmp_path / "launches").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["attempt"], line["kind"]) for line in lines] == [(2, "start"), (2, "failure"), (2, "end")]
    assert sorted(line["at"] for line in lines) == [line["at"] for line in lines]


def pods_of_two(start: Callable[..., Pod], tmp_path: Path) -> list[Pod]:
    """Two pods of two ranks that save together."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rank0 = {"MUSTER_RANK0_HOST": "127.0.0.1", "MUSTER_RANK0_PORT": str(port), "MUSTER_REPLICAS": "2"}
    pods = [
        start(PEER + SAVES, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path), MUSTER_REPLICA=str(replica), **rank0)
        for replica in (0, 1)
    ]
    while not all(len(pids(pod)) == 2 for pod in pods):
        time.sleep(0.01)
    return pods


@pytest.mark.parametrize("seed", range(2))
def test_the_launchers_of_several_pods_write_the_newest_step_that_all_have(
    seed: int, start: Callable[..., Pod], tmp_path: Path
) -> None:
    chosen = random.Random(seed)
    pods = pods_of_two(start, tmp_path)
    before = saved_by_all(tmp_path, 4)
    os.kill(chosen.choice(list(pids(pods[chosen.randrange(2)]).values())), signal.SIGKILL)
    (tmp_path / "ended").touch()  # as the end of a connection does
    assert all(pod.end()[0] for pod in pods)
    (found,) = CheckpointStore(tmp_path / "checkpoints", 1, 0).candidates()
    assert found.step >= before
    files = read_digests(read_description(found.path))
    assert files is not None
    assert sorted(file.name for file in files) == [f"__{rank}_0.distcp" for rank in range(4)]
    verify_files(found.path, files)
    for file in files:
        content = (found.path / file.name).read_bytes()
        assert content == found.step.to_bytes(8, "little") * (len(content) // 8), "of one step only"


def test_without_the_memory_of_a_lost_pod_nothing_is_published(start: Callable[..., Pod], tmp_path: Path) -> None:
    pods = pods_of_two(start, tmp_path)
    ranks = list(pids(pods[1]).values())
    pods[1].process.kill()
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "ended").touch()
    code, log = pods[0].end()
    assert code == 1
    assert "the checkpoint in memory is lost: another pod has not ended in time" in log
    assert CheckpointStore(tmp_path / "checkpoints", 1, 0).candidates() == []
