"""The collector: which traces it collects, and its results."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import IO

import pytest
from tests.tracing.kineto import trace_text, training_steps
from tests.tracing.spool import (
    TRACE,
    claimed,
    collected,
    manifest_of,
    run_once,
    spooled,
    uncollected,
)

from muster.tracing import collector
from muster.tracing.collect import spool_collector
from muster.tracing.collect.collector_arguments import parse_ranks
from muster.tracing.collect.spool_collector import CollectorOptions
from muster.tracing.reader import validate_trace
from muster.tracing.runs.trace_files import SpoolClaims, collector_lock, parse_trace_name
from muster.tracing.shared_folder import SharedFolder

pytestmark = pytest.mark.usefixtures("undisturbed")


def test_a_finished_trace_is_compressed_listed_and_removed_from_the_spool(tmp_path: Path) -> None:
    source = spooled(tmp_path)
    assert run_once(tmp_path) == 0
    packed = collected(tmp_path)
    assert gzip.decompress(packed.read_bytes()) == TRACE
    assert not source.exists()
    (entry,) = manifest_of(tmp_path).traces
    assert (entry.file, entry.rank, entry.attempt, entry.start_step, entry.end_step) == (packed.name, 0, 0, 20, 25)
    assert (entry.status, entry.reason, entry.raw_bytes, entry.bytes) == ("ok", None, len(TRACE), packed.stat().st_size)
    assert entry.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_a_memory_snapshot_is_stored_and_listed_apart_from_the_traces(tmp_path: Path) -> None:
    snapshot = spooled(tmp_path).with_suffix(".pickle")
    snapshot.write_bytes(b"\x80\x04content that the collector does not read")
    store = tmp_path / "store"
    assert run_once(tmp_path, "--store", str(store)) == 0
    manifest = manifest_of(tmp_path)
    (entry,) = manifest.snapshots
    assert (entry.file, entry.rank, entry.status, entry.summary) == (
        "memory/rank-0.attempt-0.steps-20-25.pickle.gz", 0, "ok", None,
    )  # fmt: skip
    assert len(manifest.traces) == 1
    assert uncollected(tmp_path) == []
    for folder in (tmp_path, store):
        content = gzip.decompress((folder / "traces" / entry.file).read_bytes())
        assert content == b"\x80\x04content that the collector does not read"


def test_an_unfinished_trace_is_not_collected(tmp_path: Path) -> None:
    path = spooled(tmp_path).rename(tmp_path / "traces/spool/rank-0.attempt-0.steps-20-25.json.tmp")
    assert run_once(tmp_path) == 0
    assert path.exists()
    assert not collected(tmp_path).exists()


def test_only_traces_of_the_pods_own_ranks_are_collected(tmp_path: Path) -> None:
    for rank in range(4):
        spooled(tmp_path, rank)
    assert run_once(tmp_path, "--ranks", "0-1,3") == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [0, 1, 3]
    assert [path.name for path in (tmp_path / "traces" / "spool").iterdir()] == ["rank-2.attempt-0.steps-20-25.json"]


@pytest.mark.parametrize("text", ["x", "1-", "-1", "", "0;1"])
def test_invalid_ranks_are_rejected_with_a_valid_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_once(Path("/nonexistent"), f"--ranks={text}")
    assert "such as 0-1 or 0,3" in capsys.readouterr().err


def test_ranks_are_lists_of_numbers_and_ranges() -> None:
    assert parse_ranks("0-2,7") == {0, 1, 2, 7}


@pytest.mark.parametrize(
    ("content", "reason"),
    [(TRACE[:700], "truncated"), (b"", "is empty"), (b'{"a": 1}', "without traceEvents"), (b"\0\1garbage", "damaged")],
)
def test_a_corrupt_trace_is_logged_recorded_and_quarantined(
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


def test_the_store_has_the_same_names_as_the_run_folder(tmp_path: Path) -> None:
    spooled(tmp_path)
    assert run_once(tmp_path, "--store", f"file://{tmp_path}/kept") == 0
    for name in (collected(tmp_path).name, "manifest-trainer-0.json"):
        assert (tmp_path / "kept/traces" / name).read_bytes() == (tmp_path / "traces" / name).read_bytes()


def test_traces_wait_for_an_unreachable_store_and_are_uploaded_later(tmp_path: Path) -> None:
    """The trace remains claimed, the manifest has the reason, and the next attempt succeeds."""
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


def test_an_unreadable_manifest_is_renamed_and_rebuilt(tmp_path: Path) -> None:
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


def collector_of(run_dir: Path, store: Path | None = None) -> spool_collector.Collector:
    return spool_collector.start_collector(
        CollectorOptions(run_dir, "trainer", 0, store=None if store is None else str(store)), 0.0
    )


def test_a_trace_that_kills_its_reader_repeatedly_is_quarantined_and_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer, good = spooled(tmp_path, 0), spooled(tmp_path, 1)

    def dies(file: IO[bytes], path: Path, *_: object) -> int:
        if path.name == killer.name:
            raise SystemExit(137)  # as if the kernel had ended it: nothing of ours runs on
        return validate_trace(file, path)

    monkeypatch.setattr(spool_collector, "validate_trace", dies)
    for _ in range(spool_collector.MAX_READ_ATTEMPTS):
        with pytest.raises(SystemExit):
            collector_of(tmp_path).collect_finished(0.0)
    assert claimed(killer).exists()
    assert [entry.file for entry in manifest_of(tmp_path).traces] == [collected(tmp_path, 1).name], "the second time"
    assert not claimed(good).exists()
    assert collector_of(tmp_path).collect_finished(0.0) == 1
    bad = next(entry for entry in manifest_of(tmp_path).traces if entry.status == "corrupt")
    assert (bad.rank, bad.reason) == (0, "its reader was killed or failed 5 times")
    assert (tmp_path / "traces" / bad.file).read_bytes() == TRACE
    assert uncollected(tmp_path) == []


def test_a_trace_that_fails_its_reader_repeatedly_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: IO[bytes], path: Path, *_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(spool_collector, "validate_trace", fails)
    spooled(tmp_path)
    assert run_once(tmp_path) == 1
    sweeping = collector_of(tmp_path)
    for _ in range(spool_collector.MAX_READ_ATTEMPTS):
        sweeping.collect_finished(0.0, respect_backoff=False)
    assert [entry.status for entry in manifest_of(tmp_path).traces] == ["corrupt"]
    assert uncollected(tmp_path) == []


def test_errors_of_a_store_or_a_disk_do_not_count_as_read_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    spooled(tmp_path)
    sweeping = collector_of(tmp_path, tmp_path / "kept")
    for _ in range(2 * spool_collector.MAX_READ_ATTEMPTS):
        assert sweeping.collect_finished(0.0, respect_backoff=False) == 0

    def unread(file: IO[bytes], path: Path, *_: object) -> int:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(spool_collector, "validate_trace", unread)
        for _ in range(2 * spool_collector.MAX_READ_ATTEMPTS):
            assert sweeping.collect_finished(0.0, respect_backoff=False) == 0
    (tmp_path / "kept").unlink()
    assert sweeping.collect_finished(0.0, respect_backoff=False) == 1
    assert [entry.status for entry in manifest_of(tmp_path).traces] == ["ok"]


def test_read_attempts_move_with_a_claim_and_are_reset_by_a_new_version_of_the_trace(tmp_path: Path) -> None:
    source = spooled(tmp_path)
    name = parse_trace_name(source.name)
    assert name is not None
    first, second = SpoolClaims(SharedFolder(tmp_path), "trainer-0"), SpoolClaims(SharedFolder(tmp_path), "trainer-1")
    second.prepare()
    assert first.claim(name)
    for _ in range(3):
        first.begin_read(name)
    assert second.take_over_stale(None) == [name]
    assert (first.read_attempts(name), second.read_attempts(name)) == (0, 3)
    spooled(tmp_path)
    assert second.claim(name)
    assert second.read_attempts(name) == 0
    second.begin_read(name)
    (tmp_path / second.path(name)).unlink()
    second.prepare()
    assert uncollected(tmp_path) == []


def test_a_manifest_nested_too_deeply_is_invalid(tmp_path: Path) -> None:
    spooled(tmp_path)
    deep = '{"role": "trainer", "index": 0, "odd": ' + "[" * 20_000 + "]" * 20_000 + "}"
    for name in ("manifest-trainer-0.json", "manifest-trainer-1.json"):
        (tmp_path / "traces" / name).write_text(deep)
    assert run_once(tmp_path) == 0
    assert [entry.status for entry in manifest_of(tmp_path).traces] == ["ok"]
    assert (tmp_path / "traces/manifest-trainer-0.broken").read_text() == deep


@pytest.mark.parametrize("kind", ["a symbolic link", "a FIFO", "a file with 2 hard links"])
def test_an_irregular_file_is_recorded_as_corrupt_and_not_read(tmp_path: Path, kind: str) -> None:
    outside, source = tmp_path / "outside", spooled(tmp_path / "run")
    outside.write_bytes(TRACE)
    source.unlink()
    if kind == "a FIFO":
        os.mkfifo(source)
    elif kind == "a symbolic link":
        source.symlink_to(outside)
    else:
        source.hardlink_to(outside)
    assert run_once(tmp_path / "run") == 0
    (entry,) = manifest_of(tmp_path / "run").traces
    assert (entry.status, entry.reason, entry.bytes) == ("corrupt", f"must be a regular file; got {kind}", 0)
    assert not collected(tmp_path / "run").exists()
    assert outside.read_bytes() == TRACE


def test_a_manifest_of_another_pod_is_invalid_and_not_written(tmp_path: Path) -> None:
    spooled(tmp_path / "run")
    (tmp_path / "manifest-x").mkdir()
    for name in ("manifest-trainer-0.json", "manifest-trainer-1.json"):
        (tmp_path / "run/traces" / name).write_text('{"role": "x/../../../found", "index": 0}')
    assert run_once(tmp_path / "run", "--store", str(tmp_path / "kept/run")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "manifest-x", "run"]
    assert [entry.status for entry in manifest_of(tmp_path / "run").traces] == ["ok"]


def test_symbolic_links_below_the_mount_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount/run").symlink_to(tmp_path / "elsewhere")
    assert run_once(tmp_path / "mount/run", "--mount", str(tmp_path / "mount")) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / "mount/run").unlink()
    spooled(tmp_path / "mount/run")
    assert run_once(tmp_path / "mount/run", "--mount", str(tmp_path / "mount")) == 0
    assert collected(tmp_path / "mount/run").exists()


def test_the_run_folder_may_be_the_mount(tmp_path: Path) -> None:
    spooled(tmp_path)
    assert run_once(tmp_path, "--mount", str(tmp_path), "--open-spool") == 0
    assert collected(tmp_path).exists()


def termination_message(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_a_second_collector_keeps_the_count_in_the_termination_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the sidecar the lock may still be held, or the disk may fail."""
    message, options = tmp_path / "message", ("--termination-message-path", str(tmp_path / "message"))
    spooled(tmp_path)
    assert run_once(tmp_path, *options) == 0
    assert termination_message(message) == {"traces": 1, "checkpoint": None}
    monkeypatch.setattr(collector, "LOCK_TIMEOUT_S", 0.0)
    with collector_lock(SharedFolder(tmp_path), "trainer-0"):
        assert run_once(tmp_path, *options) == 1
    assert termination_message(message) == {"traces": 1, "checkpoint": None}
    (tmp_path / "traces/manifest-trainer-0.json").write_text("{")
    monkeypatch.setattr(collector, "start_collector", failing_start)
    assert run_once(tmp_path, *options) == 1
    assert termination_message(message) == {"traces": 1, "checkpoint": None}


def failing_start(options: CollectorOptions, now: float) -> None:
    raise OSError("Input/output error")
