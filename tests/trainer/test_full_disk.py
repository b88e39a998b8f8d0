"""On a full disk, training continues, reports the failure and keeps the previous checkpoint."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK

from .conftest import TINY, Starter, events, latest, losses, metrics

pytestmark = pytest.mark.slow

CHECKPOINT_MB = 10.4  # of gpt:1m: weights and two moments in float32


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: float) -> Iterator[None]:
    """A file system of its own under `folder`; skips where mounting is not permitted."""
    folder.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={int(megabytes * 1024)}k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if mounted.returncode:
        pytest.skip(f"mounting a small disk is not permitted: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.smoke
def test_a_full_disk_loses_one_checkpoint_and_with_free_space_the_next_is_saved(
    start: Starter, text: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with small_disk(run_dir / "checkpoints", 1.8 * CHECKPOINT_MB):
        ranks = start(
            2, *TINY, "--data", str(text), "--steps", "120", "--checkpoint_every", "40", "--keep", "1", held_at=110
        )
        ranks.wait_until(lambda: events(run_dir, "checkpoint_failed"))
        failed = events(run_dir, "checkpoint_failed")[0]
        assert failed["step"] == 80
        assert "training continues, the previous checkpoint is kept" in failed["message"]
        saved = latest(run_dir)
        assert saved is not None
        assert saved["step"] == 40
        more = f"remount,size={int(4 * CHECKPOINT_MB)}m"
        subprocess.run(["mount", "-o", more, str(run_dir / "checkpoints")], check=True)
        ranks.go_on()
        assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
        names = sorted(entry.name for entry in (run_dir / "checkpoints").iterdir())
        assert names == ["latest", "step-00000120"]
    assert list(losses(run_dir)) == list(range(1, 121))


def test_if_no_checkpoint_can_be_written_the_run_fails_at_its_end(start: Starter, text: Path) -> None:
    ranks = start(1, *TINY, "--data", str(text), "--steps", "6", "--checkpoint_every", "2", limit_file_bytes=1_000_000)
    assert ranks.end() == [EXIT_FAILED]
    assert list(losses(ranks.run_dir)) == list(range(1, 7))
    assert [event["step"] for event in events(ranks.run_dir, "checkpoint_failed")] == [2, 4, 6]
    assert latest(ranks.run_dir) is None
    assert not list((ranks.run_dir / "checkpoints").iterdir())


def test_a_full_disk_loses_the_trace_and_training_continues(start: Starter, text: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with small_disk(run_dir / "traces", 0.1):
        ranks = start(2, *TINY, "--data", str(text), "--steps", "6", "--trace_steps", "2:4")
        assert ranks.end() == [EXIT_OK] * 2
        assert list((run_dir / "traces" / "spool").iterdir()) == []
    (failed,) = events(run_dir, "trace_failed")
    assert "no trace of steps 2:4" in failed["message"]
    assert "[rank 1] no trace of steps 2:4" in ranks.log_text(1)


def test_without_space_for_metrics_and_heartbeats_the_run_succeeds(start: Starter, text: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with small_disk(run_dir / "metrics", 0.008):
        ranks = start(1, *TINY, "--data", str(text), "--steps", "60", "--checkpoint_every", "0")
        assert ranks.end() == [EXIT_OK]
        written = (run_dir / "metrics" / "rank-0.jsonl").read_text()
        assert 0 < len(metrics(run_dir)) < 60
        assert all(json.loads(line) for line in written.splitlines())
    assert ranks.log_text().count("cannot write") == 1
