"""Ranks, launchers and whole pods are killed at random moments, one attempt after the other in one run folder: every
checkpoint there stays readable, and no kill loses more than the memory that it ended."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from muster_components.trainer.checkpoint_manifest import read_digests, verify_files
from muster_components.trainer.checkpoint_store import CheckpointStore, read_description

from .conftest import Pod
from .saving_program import PEER, SAVES, pids, saved_by_all

KILLS = 8
GOES_ON = SAVES.replace("range(1, 1_000_000)", "range(FIRST, 1_000_000)").replace(
    "if step == 1 else", "if step == FIRST else"
)
GOES_ON = GOES_ON.replace('"attempt": 0,', '"attempt": ATTEMPT,')


def newest_readable(run_dir: Path, attempt: int) -> int:
    """The newest step on the volume, 0 without one; every checkpoint is whole and of one step."""
    steps = [0]
    for found in CheckpointStore(run_dir / "checkpoints", attempt, 0).candidates():
        files = read_digests(read_description(found.path))
        assert files is not None
        assert [file.name for file in files] == ["__0_0.distcp", "__1_0.distcp"]
        verify_files(found.path, files)
        for file in files:
            content = (found.path / file.name).read_bytes()
            assert content == found.step.to_bytes(8, "little") * (len(content) // 8), "of one step only"
        steps.append(found.step)
    return max(steps)


def kill(pod: Pod, what: str, chosen: random.Random) -> None:
    """SIGKILL, of a rank; of a rank and soon after of its launcher, which may be writing; or of the launcher and then
    its ranks, as the end of a pod does."""
    ranks = list(pids(pod).values())
    if what != "pod":
        os.kill(chosen.choice(ranks), signal.SIGKILL)
    if what == "launcher":
        time.sleep(chosen.random() / 10)  # any moment will do
    if what != "rank":
        pod.process.kill()
        pod.process.wait()
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(2))
def test_after_any_kills_everything_on_the_volume_is_readable_and_only_killed_memory_is_lost(
    seed: int, start: Callable[..., Pod], tmp_path: Path
) -> None:
    chosen, on_volume = random.Random(seed), 0
    for attempt in range(KILLS):
        for rank in range(2):
            (tmp_path / f"step-of-{rank}").unlink(missing_ok=True)
        source = f"FIRST, ATTEMPT = {on_volume + 1}, {attempt}\n{PEER}{GOES_ON}"
        pod = start(source, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path), MUSTER_ATTEMPT=str(attempt))
        while len(pids(pod)) < 2:
            assert pod.process.poll() is None, pod.log_text()
            time.sleep(0.01)
        time.sleep(chosen.random() / 8)
        before, what = saved_by_all(tmp_path), chosen.choice(["rank", "rank", "launcher", "pod"])
        kill(pod, what, chosen)
        code, log = pod.end()
        assert code != 0
        found = newest_readable(tmp_path, attempt + 1)
        assert found >= (before if what == "rank" else on_volume), f"{what} in attempt {attempt}: {log}"
        on_volume = found
    assert on_volume > 0
