"""The collector as a process: what it takes, what it leaves, and what stops it (nothing but SIGTERM)."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tracing.kineto import trace_text, training_steps

from muster.tracing.claims import only_one
from muster.tracing.collect import collect_leftovers
from muster.tracing.collector import main, ranks
from muster.tracing.manifest import Manifest, TraceEntry, manifests, read_manifest

ROOT = Path(__file__).resolve().parents[2]
TRACE = trace_text(training_steps(5))


def spooled(run_dir: Path, rank: int = 0, *, attempt: int = 0, content: bytes = TRACE) -> Path:
    path = run_dir / "traces" / "spool" / f"rank-{rank}.attempt-{attempt}.steps-20-25.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_bytes(content)
    return path.with_suffix(".tmp").rename(path)


def collected(run_dir: Path, rank: int = 0, *, attempt: int = 0) -> Path:
    return run_dir / "traces" / f"rank-{rank}.attempt-{attempt}.steps-20-25.json.gz"


def claimed(source: Path, pod: int = 0) -> Path:
    return source.parents[1] / "claimed" / f"trainer-{pod}" / source.name


def manifest_of(run_dir: Path, pod: int = 0) -> Manifest:
    return read_manifest(run_dir / "traces" / f"manifest-trainer-{pod}.json")


def command(run_dir: Path, *options: str, pod: int = 0) -> list[str]:
    module = [sys.executable, "-m", "muster.tracing.collector", "--run-dir", str(run_dir)]
    return [*module, "--role", "trainer", "--index", str(pod), "--poll-seconds", "0.05", *options]


def uncollected(run_dir: Path) -> list[str]:
    """What lies in the spool or is claimed."""
    folders = (run_dir / "traces" / "spool", run_dir / "traces" / "claimed")
    return sorted(path.name for folder in folders for path in folder.rglob("*") if path.is_file())


@contextmanager
def collector(run_dir: Path, *options: str, pod: int = 0, **how: object) -> Iterator[subprocess.Popen[str]]:
    started = command(run_dir, *options, pod=pod)
    process = subprocess.Popen(started, stderr=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def run_once(run_dir: Path, *options: str, pod: int = 0) -> int:
    """In this process, so quick: everything but signals."""
    return main(["--run-dir", str(run_dir), "--role", "trainer", "--index", str(pod), "--until-idle", *options])


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`main` makes itself nice and takes over signals; the test run wants neither."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_finished_trace_is_compressed_listed_and_leaves_the_spool(tmp_path: Path) -> None:
    source = spooled(tmp_path)
    assert run_once(tmp_path) == 0
    packed = collected(tmp_path)
    assert gzip.decompress(packed.read_bytes()) == TRACE
    assert not source.exists()
    (entry,) = manifest_of(tmp_path).traces
    assert (entry.file, entry.rank, entry.attempt, entry.start_step, entry.end_step) == (packed.name, 0, 0, 20, 25)
    assert (entry.status, entry.reason, entry.raw_bytes, entry.bytes) == ("ok", None, len(TRACE), packed.stat().st_size)
    assert entry.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_a_trace_still_being_written_is_left_alone(tmp_path: Path) -> None:
    path = spooled(tmp_path).rename(tmp_path / "traces/spool/rank-0.attempt-0.steps-20-25.json.tmp")
    assert run_once(tmp_path) == 0
    assert path.exists()
    assert not collected(tmp_path).exists()


def test_only_traces_of_the_pods_own_ranks_are_taken(tmp_path: Path) -> None:
    for rank in range(4):
        spooled(tmp_path, rank)
    assert run_once(tmp_path, "--ranks", "0-1,3") == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [0, 1, 3]
    assert [path.name for path in (tmp_path / "traces" / "spool").iterdir()] == ["rank-2.attempt-0.steps-20-25.json"]


@pytest.mark.parametrize("text", ["x", "1-", "-1", "", "0;1"])
def test_ranks_that_are_none_are_refused_with_what_would_be_right(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_once(Path("/nonexistent"), f"--ranks={text}")
    assert "right is 0-1 or 0,3" in capsys.readouterr().err


def test_ranks_are_lists_of_numbers_and_ranges() -> None:
    assert ranks("0-2,7") == {0, 1, 2, 7}


@pytest.mark.parametrize(
    ("content", "reason"),
    [(TRACE[:700], "truncated"), (b"", "is empty"), (b'{"a": 1}', "without traceEvents"), (b"\0\1garbage", "damaged")],
)
def test_a_corrupt_trace_is_named_recorded_and_kept_aside(
    tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = spooled(tmp_path, 1, content=content)
    spooled(tmp_path, 0)
    assert run_once(tmp_path) == 0
    bad, good = manifest_of(tmp_path).traces
    assert (bad.status, bad.rank, good.status) == ("corrupt", 1, "ok")
    assert bad.reason is not None
    assert reason in bad.reason
    assert (tmp_path / "traces" / bad.file).read_bytes() == content
    assert not source.exists()
    assert source.name in capsys.readouterr().err


def test_a_trace_written_again_under_the_same_name_replaces_the_earlier_one(tmp_path: Path) -> None:
    spooled(tmp_path)
    run_once(tmp_path)
    newer = trace_text(training_steps(2))
    spooled(tmp_path, content=newer)
    run_once(tmp_path)
    (entry,) = manifest_of(tmp_path).traces
    assert gzip.decompress(collected(tmp_path).read_bytes()) == newer
    assert entry.raw_bytes == len(newer)


def test_a_store_holds_the_same_names_as_the_run_folder(tmp_path: Path) -> None:
    spooled(tmp_path)
    assert run_once(tmp_path, "--store", f"file://{tmp_path}/kept") == 0
    for name in (collected(tmp_path).name, "manifest-trainer-0.json"):
        assert (tmp_path / "kept/traces" / name).read_bytes() == (tmp_path / "traces" / name).read_bytes()


def test_a_store_out_of_reach_costs_nothing_but_time(tmp_path: Path) -> None:
    """The trace stays claimed, the manifest says why, and the next try succeeds."""
    source = spooled(tmp_path)
    (tmp_path / "kept").write_text("a file where the folder should be")
    assert run_once(tmp_path, "--store", str(tmp_path / "kept")) == 1
    (waiting,) = manifest_of(tmp_path).waiting
    assert waiting.file == source.name
    assert "kept" in waiting.reason
    assert manifest_of(tmp_path).traces == ()
    assert claimed(source).read_bytes() == TRACE
    (tmp_path / "kept").unlink()
    assert run_once(tmp_path, "--store", str(tmp_path / "kept")) == 0
    assert (len(manifest_of(tmp_path).traces), manifest_of(tmp_path).waiting) == (1, ())


def test_a_manifest_that_cannot_be_read_is_kept_and_written_anew(tmp_path: Path) -> None:
    spooled(tmp_path, 0)
    run_once(tmp_path)
    before = manifest_of(tmp_path)
    (tmp_path / "traces/manifest-trainer-0.json").write_text('{"role": "tr')
    spooled(tmp_path, 1)
    run_once(tmp_path)
    after = manifest_of(tmp_path)
    assert [entry.rank for entry in after.traces] == [0, 1]
    assert (after.traces[0].sha256, after.traces[0].raw_bytes) == (before.traces[0].sha256, len(TRACE))
    assert (tmp_path / "traces/manifest-trainer-0.broken").exists()


def test_a_second_collector_for_the_same_pod_steps_back(tmp_path: Path) -> None:
    spooled(tmp_path)
    with collector(tmp_path):
        eventually(collected(tmp_path).exists)
        second = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode == 1
    assert "another collector" in second.stderr


def test_told_to_stop_it_takes_what_is_in_the_spool_and_ends_with_0(tmp_path: Path) -> None:
    with collector(tmp_path) as process:
        spooled(tmp_path, 0)
        eventually(collected(tmp_path, 0).exists)
        process.send_signal(signal.SIGSTOP)
        for rank in range(1, 6):
            spooled(tmp_path, rank)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=20) == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [0, 1, 2, 3, 4, 5]
    assert uncollected(tmp_path) == []


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder where syncing a file costs nothing, if there is one: hundreds of runs sync thousands of files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_killed_at_any_line_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL after every single line it executes, restart, and look (see killed_at_every_line.py)."""
    with in_memory(tmp_path) as folder:
        script = [sys.executable, "-m", "tests.tracing.killed_at_every_line", str(folder)]
        done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100


@pytest.mark.slow
def test_killed_at_random_moments_while_ranks_go_on_writing_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    contents = {rank: trace_text(training_steps(400 + rank), rank=rank) for rank in range(12)}
    pending = dict(contents)
    for round_ in range(26):
        if pending and round_ % 2 == 0:
            rank, content = pending.popitem()
            spooled(tmp_path, rank, content=content)
        with collector(tmp_path) as process:
            time.sleep(0.2 + 0.017 * round_ % 0.3)
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert run_once(tmp_path) == 0
    entries = manifest_of(tmp_path).traces
    assert sorted(entry.rank for entry in entries) == list(range(12))
    for rank, content in contents.items():
        assert gzip.decompress(collected(tmp_path, rank).read_bytes()) == content
    assert uncollected(tmp_path) == []


# ---- several pods, one run folder


def test_of_two_collectors_each_trace_goes_to_one(tmp_path: Path) -> None:
    for rank in range(20):
        spooled(tmp_path, rank)
    with collector(tmp_path, "--until-idle", pod=0) as first, collector(tmp_path, "--until-idle", pod=1) as second:
        assert (first.wait(timeout=20), second.wait(timeout=20)) == (0, 0)
    both = [entry.rank for entry in listed(tmp_path)]
    assert sorted(both) == list(range(20))
    assert uncollected(tmp_path) == []


def listed(run_dir: Path) -> list[TraceEntry]:
    """All entries of all manifests."""
    return [entry for manifest in manifests(run_dir / "traces") for entry in manifest.traces]


def abandoned(run_dir: Path, rank: int = 0, *, pod: int) -> Path:
    """A trace that the collector of this pod had claimed when it was killed."""
    source = spooled(run_dir, rank)
    claimed(source, pod).parent.mkdir(parents=True, exist_ok=True)
    return source.rename(claimed(source, pod))


def test_what_a_dead_collector_of_another_pod_had_claimed_is_taken_over(tmp_path: Path) -> None:
    abandoned(tmp_path, 3, pod=7)
    abandoned(tmp_path, 9, pod=7)
    assert run_once(tmp_path, "--ranks", "0-3") == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [3]
    assert uncollected(tmp_path) == ["rank-9.attempt-0.steps-20-25.json"]


def test_what_a_living_collector_of_another_pod_has_claimed_is_left_to_it(tmp_path: Path) -> None:
    source = abandoned(tmp_path, pod=7)
    with only_one(tmp_path / "traces", "trainer-7") as locked:
        assert locked is True
        assert run_once(tmp_path) == 0
    assert source.read_bytes() == TRACE


def test_a_trace_that_a_dead_collector_had_written_down_is_not_listed_again(tmp_path: Path) -> None:
    spooled(tmp_path)
    run_once(tmp_path, pod=7)
    abandoned(tmp_path, pod=7)  # as if it had been killed just before deleting the original
    assert run_once(tmp_path) == 0
    assert len(listed(tmp_path)) == 1
    assert uncollected(tmp_path) == []


def test_a_trace_written_again_waits_while_another_pod_works_on_the_earlier_one(tmp_path: Path) -> None:
    abandoned(tmp_path, pod=7)
    newer = spooled(tmp_path, content=trace_text(training_steps(2)))
    with only_one(tmp_path / "traces", "trainer-7"):
        run_once(tmp_path)
    assert newer.exists()
    assert run_once(tmp_path) == 0
    assert gzip.decompress(collected(tmp_path).read_bytes()) == trace_text(training_steps(2))
    assert len(listed(tmp_path)) == 1


def test_leftovers_of_dead_collectors_are_collected_in_their_name(tmp_path: Path) -> None:
    abandoned(tmp_path, 0, pod=0)
    abandoned(tmp_path, 1, pod=1)
    alive = abandoned(tmp_path, 2, pod=2)
    with only_one(tmp_path / "traces", "trainer-2"):
        assert collect_leftovers(tmp_path, now=1.0) == 2
    assert sorted(entry.rank for entry in listed(tmp_path)) == [0, 1]
    assert alive.exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_collectors_of_several_pods_killed_at_random_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Three pods, one run folder; any of them is killed at any moment, and comes back or does not."""
    chance = random.Random(seed)
    contents = {rank: trace_text(training_steps(1500 + rank), rank=rank) for rank in range(12)}
    pending = dict(contents)
    running: dict[int, subprocess.Popen[bytes]] = {}
    kills = 0
    try:
        while pending or kills < 24:
            if pending:
                rank, content = pending.popitem()
                spooled(tmp_path, rank, content=content)
            pod = chance.randrange(3)
            if pod in running:
                running.pop(pod).kill()
                kills += 1
            running[pod] = subprocess.Popen(command(tmp_path, pod=pod), stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.05, 0.3))
        for process in running.values():
            process.kill()
        last = [subprocess.Popen(command(tmp_path, "--until-idle", pod=pod), stderr=subprocess.PIPE) for pod in (0, 1)]
        assert [(process.wait(timeout=60)) for process in last] == [0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    collect_leftovers(tmp_path, time.time())  # as at report time: one of the two may have ended before the other
    assert sorted(entry.rank for entry in listed(tmp_path)) == list(range(12))
    for rank, content in contents.items():
        assert gzip.decompress(collected(tmp_path, rank).read_bytes()) == content
    for entry in listed(tmp_path):
        assert entry.sha256 == hashlib.sha256((tmp_path / "traces" / entry.file).read_bytes()).hexdigest()
    assert uncollected(tmp_path) == []
    assert list((tmp_path / "traces").glob(".*.tmp")) == []


# ---- no room


def files_up_to(limit_bytes: int) -> Callable[[], None]:
    """What a full disk looks like to a process: no file may grow beyond the limit."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))

    return limit


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process can be lifted on Linux only")
def test_without_room_for_a_trace_the_original_stays_until_there_is_room(tmp_path: Path) -> None:
    content = trace_text(training_steps(3000))
    source = spooled(tmp_path, content=content)
    with collector(tmp_path, preexec_fn=files_up_to(8192)) as process:
        eventually((tmp_path / "traces/manifest-trainer-0.json").exists)
        (waiting,) = manifest_of(tmp_path).waiting
        assert waiting.file == source.name
        assert "File too large" in waiting.reason
        assert claimed(source).read_bytes() == content
        assert process.poll() is None
        assert sorted(p.name for p in (tmp_path / "traces").glob(".*.tmp")) == []
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        eventually(lambda: not claimed(source).exists())
        eventually(lambda: manifest_of(tmp_path).waiting == ())
    assert gzip.decompress(collected(tmp_path).read_bytes()) == content


def said_about(process: subprocess.Popen[str], source: Path) -> str:
    """The first line of the collector's log that is about this file."""
    assert process.stderr is not None
    return next(line for line in process.stderr if source.name in line)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as out:
        while True:
            out.write(b"0" * 4096)


@pytest.mark.slow
def test_a_disk_without_a_free_byte_is_waited_out(tmp_path: Path) -> None:
    """A real full file system, where this machine lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        content = trace_text(training_steps(300))
        source = spooled(disk, content=content)
        with collector(disk) as process:
            eventually(collected(disk).exists)
            ballast = disk / "ballast"
            source = spooled(disk, 1, content=content)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(OSError, match="No space left"):
                fill(ballast)
            process.send_signal(signal.SIGCONT)
            assert "No space left" in said_about(process, source)
            assert claimed(source).read_bytes() == content
            ballast.unlink()
            eventually(lambda: not claimed(source).exists())
        assert gzip.decompress(collected(disk, 1).read_bytes()) == content
    finally:
        subprocess.run(["umount", disk], check=False)
