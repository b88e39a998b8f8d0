"""The collector as a process: only SIGTERM ends it, SIGKILL loses no trace, and a full disk is retried."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.local.support import eventually
from tests.tracing.kineto import trace_text, training_steps
from tests.tracing.spool import (
    claimed,
    collected,
    collector,
    command,
    manifest_of,
    run_once,
    spooled,
    uncollected,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undisturbed")]
ROOT = Path(__file__).resolve().parents[3]


def test_a_second_collector_of_the_same_pod_exits_with_1(tmp_path: Path) -> None:
    spooled(tmp_path)
    with collector(tmp_path):
        eventually(collected(tmp_path).exists)
        second = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "another collector" in second.stderr


@pytest.mark.smoke
def test_on_sigterm_the_collector_empties_the_spool_and_exits_with_0(tmp_path: Path) -> None:
    with collector(tmp_path) as process:
        spooled(tmp_path, 0)
        eventually(collected(tmp_path, 0).exists)
        process.send_signal(signal.SIGSTOP)
        for rank in range(1, 6):
            spooled(tmp_path, rank)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [0, 1, 2, 3, 4, 5]
    assert uncollected(tmp_path) == []


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder in memory if possible, since the test syncs thousands of files."""
    in_memory_folder = Path("/dev/shm")
    if not os.access(in_memory_folder, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=in_memory_folder) as folder:
        yield Path(folder)


def test_a_kill_at_any_line_loses_and_duplicates_no_trace(tmp_path: Path) -> None:
    """See killed_at_every_line.py."""
    with in_memory(tmp_path) as folder:
        script = [sys.executable, "-m", "tests.tracing.killed_at_every_line", str(folder)]
        done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    executed, after_changes = map(int, done.stdout.split()[-2:])
    assert executed > after_changes > 40


def test_random_kills_while_ranks_write_lose_and_duplicate_no_trace(tmp_path: Path) -> None:
    contents = {rank: trace_text(training_steps(400 + rank), rank=rank) for rank in range(12)}
    pending = dict(contents)
    for number in range(26):
        if pending and number % 2 == 0:
            rank, content = pending.popitem()
            spooled(tmp_path, rank, content=content)
        with collector(tmp_path) as process:
            time.sleep(0.2 + 0.017 * number % 0.3)
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert run_once(tmp_path) == 0
    entries = manifest_of(tmp_path).traces
    assert sorted(entry.rank for entry in entries) == list(range(12))
    for rank, content in contents.items():
        assert gzip.decompress(collected(tmp_path, rank).read_bytes()) == content
    assert uncollected(tmp_path) == []


# ---- full disks


def files_up_to(limit_bytes: int) -> Callable[[], None]:
    """Simulate a full disk: no file may grow beyond the limit."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

    return limit


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process can be lifted on Linux only")
def test_on_a_full_disk_the_original_is_kept_until_space_is_free(tmp_path: Path) -> None:
    content = trace_text(training_steps(3000))
    source = spooled(tmp_path, content=content)
    with collector(tmp_path, preexec_fn=files_up_to(8192)) as process:
        eventually((tmp_path / "traces/manifest-trainer-0.json").exists)
        (waiting,) = eventually(lambda: manifest_of(tmp_path).waiting)
        assert waiting.file == source.name
        assert "File too large" in waiting.reason
        assert claimed(source).read_bytes() == content
        assert process.poll() is None
        eventually(lambda: not list((tmp_path / "traces").glob(".*.tmp")))  # a retry may be in progress
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        eventually(lambda: not claimed(source).exists())
        eventually(lambda: manifest_of(tmp_path).waiting == ())
    assert gzip.decompress(collected(tmp_path).read_bytes()) == content


def log_line_about(process: subprocess.Popen[str], source: Path) -> str:
    """The first line of the collector's log with the name of this file."""
    assert process.stderr is not None
    return next(line for line in process.stderr if source.name in line)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as out:
        while True:
            out.write(b"0" * 4096)


def test_the_collector_starts_once_a_full_disk_has_space(tmp_path: Path) -> None:
    """A real full file system, if mounting is permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not permitted")
    try:
        content = trace_text(training_steps(300))
        source = spooled(disk, content=content)
        with collector(disk) as process:
            eventually(collected(disk).exists)
            ballast = disk / "ballast"
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            source = spooled(disk, 1, content=content)
            with pytest.raises(OSError, match="No space left"):
                fill(ballast)
            process.send_signal(signal.SIGCONT)
            assert "No space left" in log_line_about(process, source)
            assert claimed(source).read_bytes() == content
            ballast.unlink()
            eventually(lambda: not claimed(source).exists())
        assert gzip.decompress(collected(disk, 1).read_bytes()) == content
    finally:
        subprocess.run(["umount", disk], check=False)
