"""Uploads besides traces: changed files only, complete lines, at limited rate; errors are retried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.tracing.collect import run_sync
from muster.tracing.collect.run_sync import RunSync
from muster.tracing.runs.run_store import read_stored_log, select_files
from muster.tracing.shared_folder import SharedFolder


class SyncedRun:
    """A run folder, a store in memory, and a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uploaded: dict[str, bytes] = {}
        self.log: list[str] = []
        self.now = 100.0
        self.upload_s = 0.0
        self.error: Exception | None = None
        self.sync = RunSync(SharedFolder(folder), self._send, self.log.append, lambda: self.now)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def _send(self, name: str, content: bytes) -> None:
        self.now += self.upload_s
        if self.error is not None:
            raise self.error
        self.uploaded[name] = content


@pytest.fixture
def run(tmp_path: Path) -> SyncedRun:
    return SyncedRun(tmp_path)


def test_only_metrics_heartbeats_and_events_are_uploaded_under_their_names(run: SyncedRun) -> None:
    run.write("metrics/rank-0.jsonl", '{"step": 1}\n')
    run.write("heartbeats/rank-0.json", "{}")
    run.write("events.jsonl", "{}\n")
    for name in (
        "metrics/notes.txt",
        "metrics/rank-0.json",
        "heartbeats/.rank-1.json",
        "heartbeats/rank-2.json.tmp",
        "secret",
    ):
        run.write(name, "x")
    assert run.sync.sync() == 3
    assert run.uploaded == {
        "metrics/rank-0.jsonl": b'{"step": 1}\n',
        "heartbeats/rank-0.json": b"{}",
        "events.jsonl": b"{}\n",
    }


def test_only_changed_files_are_uploaded_and_not_before_the_interval_ends(run: SyncedRun) -> None:
    run.write("heartbeats/rank-0.json", "{}")
    run.write("heartbeats/rank-1.json", "{}")
    run.sync.sync()
    run.write("heartbeats/rank-1.json", '{"step": 1}')
    assert run.sync.sync() == 0
    run.now += run_sync.SYNC_INTERVAL_S
    assert run.sync.sync() == 1
    assert run.uploaded["heartbeats/rank-1.json"] == b'{"step": 1}'


def test_the_final_sync_does_not_wait(run: SyncedRun) -> None:
    run.sync.sync()
    run.write("heartbeats/rank-0.json", "{}")
    assert run.sync.sync(final=True) == 1


def test_the_interval_grows_with_the_duration_of_uploads(run: SyncedRun) -> None:
    run.write("heartbeats/rank-0.json", "{}")
    run.upload_s = 10.0
    run.sync.sync()
    run.write("heartbeats/rank-0.json", '{"step": 1}')
    run.now += 10.0 * run_sync.REST_FACTOR - 1.0
    assert run.sync.sync() == 0
    run.now += 1.0
    assert run.sync.sync() == 1


def test_an_incomplete_line_is_not_uploaded(run: SyncedRun) -> None:
    run.write("metrics/rank-0.jsonl", '{"step": 1}\n{"st')
    run.sync.sync()
    assert run.uploaded["metrics/rank-0.jsonl"] == b'{"step": 1}\n'


def test_of_a_large_file_the_newest_complete_lines_are_uploaded(
    run: SyncedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sync, "MAX_FILE_BYTES", 10)
    run.write("metrics/rank-0.jsonl", "1111\n2222\n3333\n")
    run.sync.sync()
    assert run.uploaded["metrics/rank-0.jsonl"] == b"3333\n"


def test_linked_files_are_not_uploaded_and_a_fifo_does_not_block(run: SyncedRun) -> None:
    secret = run.write("secret", "x")
    (run.folder / "metrics").mkdir()
    (run.folder / "metrics/rank-0.jsonl").symlink_to(secret)
    os.mkfifo(run.folder / "metrics/rank-1.jsonl")
    assert run.sync.sync() == 0
    assert run.uploaded == {}


def test_an_error_is_logged_once_and_the_upload_is_retried(run: SyncedRun) -> None:
    run.write("heartbeats/rank-0.json", "{}")
    run.error = OSError("unreachable")
    for _ in range(3):
        run.sync.sync()
        run.now += run_sync.SYNC_INTERVAL_S
    assert run.log == ["cannot upload metrics, heartbeats, events and logs, retrying: OSError: unreachable"]
    run.error = None
    assert run.sync.sync() == 1


def test_only_the_newest_window_and_known_names_are_selected() -> None:
    records = ["events.jsonl", "heartbeats/rank-1.json", "metrics/rank-0.jsonl", "traces/manifest-trainer-0.json"]
    newest = [f"traces/rank-{rank}.attempt-1.steps-30-35.json.gz" for rank in (0, 1)]
    others = [
        "traces/rank-0.attempt-0.steps-40-45.json.gz",
        "traces/rank-0.attempt-1.steps-20-25.json.gz",
        "../metrics/rank-0.jsonl",
        "traces/../../x.json.gz",
        "checkpoints/step-1/data",
        "traces/manifest-../x-0.json",
    ]
    assert select_files([*others, *newest, *records]) == (newest, records)


def test_logs_and_stacks_are_uploaded_less_often_and_at_the_end(run: SyncedRun) -> None:
    names = (
        "logs/worker-0.attempt-0.log",
        "stacks/rank-0.attempt-0.stop.txt",
        "flight-recorder/rank-0.attempt-0.stop.pickle",
    )
    for name in (
        *names,
        "flight-recorder/x.pickle",
        "logs/secret.txt",
        "logs/.worker-0.attempt-0.log",
        "stacks/rank-0.txt",
    ):
        run.write(name, "x\n")
    assert run.sync.sync() == 3
    assert sorted(run.uploaded) == sorted(names)
    run.write(names[0], "x\ny\n")
    run.now += run_sync.SYNC_INTERVAL_S
    assert run.sync.sync() == 0
    assert run.sync.sync(final=True) == 1
    assert run.uploaded[names[0]] == b"x\ny\n"
    run.write(names[0], "x\ny\nz\n")
    run.now += run_sync.ARTIFACT_INTERVAL_S
    assert run.sync.sync() == 1


def test_many_saved_stacks_do_not_displace_logs(run: SyncedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_sync, "MAX_FILES", 3)
    logs = [f"logs/worker-0.attempt-{attempt}.log" for attempt in range(2)]
    stacks = [f"stacks/rank-{rank}.attempt-1.capture.txt" for rank in range(9)]
    for name in (*logs, *stacks):
        run.write(name, "x\n")
    run.sync.sync()
    assert set(logs) <= set(run.uploaded)
    assert len(set(run.uploaded) & set(stacks)) == 3


def test_a_stored_log_is_read_from_the_store(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.attempt-1.log").write_text("one\ntwo\n")
    location = f"file://{tmp_path}"
    assert read_stored_log(location, "worker-0.attempt-1.log") == ["one", "two"]
    assert read_stored_log(location, "worker-0.attempt-0.log") is None
