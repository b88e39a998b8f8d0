"""What is kept in the store besides traces: what changed, whole lines, not too often; trouble ends nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.tracing import run_sync
from muster.tracing.run_fetch import select_files
from muster.tracing.run_sync import RunSync
from muster.tracing.shared_folder import SharedFolder


class Stage:
    """A run folder, a store in memory, and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, bytes] = {}
        self.said: list[str] = []
        self.now = 100.0
        self.takes_s = 0.0
        self.trouble: Exception | None = None
        self.keeping = RunSync(SharedFolder(folder), self._send, self.said.append, lambda: self.now)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def _send(self, name: str, content: bytes) -> None:
        self.now += self.takes_s
        if self.trouble is not None:
            raise self.trouble
        self.kept[name] = content


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_only_metrics_heartbeats_and_events_are_uploaded_under_their_names(stage: Stage) -> None:
    stage.write("metrics/rank-0.jsonl", '{"step": 1}\n')
    stage.write("heartbeats/rank-0.json", "{}")
    stage.write("events.jsonl", "{}\n")
    for name in (
        "metrics/notes.txt",
        "metrics/rank-0.json",
        "heartbeats/.rank-1.json",
        "heartbeats/rank-2.json.tmp",
        "secret",
    ):
        stage.write(name, "x")
    assert stage.keeping.sync() == 3
    assert stage.kept == {
        "metrics/rank-0.jsonl": b'{"step": 1}\n',
        "heartbeats/rank-0.json": b"{}",
        "events.jsonl": b"{}\n",
    }


def test_only_changed_files_are_uploaded_and_not_before_the_interval_ends(stage: Stage) -> None:
    stage.write("heartbeats/rank-0.json", "{}")
    stage.write("heartbeats/rank-1.json", "{}")
    stage.keeping.sync()
    stage.write("heartbeats/rank-1.json", '{"step": 1}')
    assert stage.keeping.sync() == 0
    stage.now += run_sync.SYNC_INTERVAL_S
    assert stage.keeping.sync() == 1
    assert stage.kept["heartbeats/rank-1.json"] == b'{"step": 1}'


def test_the_final_sync_does_not_wait(stage: Stage) -> None:
    stage.keeping.sync()
    stage.write("heartbeats/rank-0.json", "{}")
    assert stage.keeping.sync(final=True) == 1


def test_the_interval_grows_with_the_duration_of_uploads(stage: Stage) -> None:
    stage.write("heartbeats/rank-0.json", "{}")
    stage.takes_s = 10.0
    stage.keeping.sync()
    stage.write("heartbeats/rank-0.json", '{"step": 1}')
    stage.now += 10.0 * run_sync.REST_FACTOR - 1.0
    assert stage.keeping.sync() == 0
    stage.now += 1.0
    assert stage.keeping.sync() == 1


def test_an_incomplete_line_is_not_uploaded(stage: Stage) -> None:
    stage.write("metrics/rank-0.jsonl", '{"step": 1}\n{"st')
    stage.keeping.sync()
    assert stage.kept["metrics/rank-0.jsonl"] == b'{"step": 1}\n'


def test_of_a_large_file_the_newest_complete_lines_are_uploaded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_sync, "MAX_FILE_BYTES", 10)
    stage.write("metrics/rank-0.jsonl", "1111\n2222\n3333\n")
    stage.keeping.sync()
    assert stage.kept["metrics/rank-0.jsonl"] == b"3333\n"


def test_linked_files_are_not_uploaded_and_a_fifo_does_not_block(stage: Stage) -> None:
    secret = stage.write("secret", "x")
    (stage.folder / "metrics").mkdir()
    (stage.folder / "metrics/rank-0.jsonl").symlink_to(secret)
    os.mkfifo(stage.folder / "metrics/rank-1.jsonl")
    assert stage.keeping.sync() == 0
    assert stage.kept == {}


def test_an_error_is_logged_once_and_the_upload_is_retried(stage: Stage) -> None:
    stage.write("heartbeats/rank-0.json", "{}")
    stage.trouble = OSError("no way there")
    for _ in range(3):
        stage.keeping.sync()
        stage.now += run_sync.SYNC_INTERVAL_S
    assert stage.said == ["cannot upload metrics, heartbeats and events, retrying: OSError: no way there"]
    stage.trouble = None
    assert stage.keeping.sync() == 1


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
