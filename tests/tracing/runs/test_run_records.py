"""The account of a run folder is kept up from where its files were read before."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.cluster import RunTime
from muster.tracing.runs.launches import STATE_FILE, RunRecordReader, read_run_time
from muster.tracing.shared_folder import SharedFolder


@pytest.fixture(autouse=True)
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are worth keeping too."""
    monkeypatch.setattr("muster.tracing.runs.launches._WORTH_KEEPING_BYTES", 0)


def append(folder: Path, name: str, *records: Mapping[str, object]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        file.write("".join(json.dumps(one) + "\n" for one in records))


def append_attempt(folder: Path, attempt: int, steps: range, start: float, step_s: float = 2.0) -> float:
    """An attempt that ends by a failure; when it ended."""
    append(folder, "launches/trainer-0.jsonl", {"attempt": attempt, "at": start, "kind": "start"})
    at = start
    for step in steps:
        at += step_s
        append(folder, "metrics/rank-0.jsonl", {"attempt": attempt, "step": step, "at": at, "step_time_s": step_s})
    for kind in ("failure", "end"):
        append(folder, "launches/trainer-0.jsonl", {"attempt": attempt, "at": at + 1, "kind": kind})
    return at + 1


def read_whole(folder: Path, now: float) -> RunTime | None:
    return RunRecordReader(SharedFolder(folder), "trainer").division(now)


def test_an_attempt_that_begins_again_earlier_makes_steps_lost_that_were_read_before(tmp_path: Path) -> None:
    ended = append_attempt(tmp_path, 0, range(1, 31), 1000.0)
    before = read_run_time(tmp_path, "trainer", ended)
    assert before is not None
    assert before.milliseconds == {"productive": 60_000, "unknown": 1_000}
    ended = append_attempt(tmp_path, 1, range(21, 41), ended + 10)
    first = read_run_time(tmp_path, "trainer", ended)
    assert first is not None
    assert first.milliseconds["lost"] == 20_000
    ended = append_attempt(tmp_path, 2, range(11, 16), ended + 10)
    second = read_run_time(tmp_path, "trainer", ended)
    assert second is not None
    assert second.milliseconds["lost"] == 40_000 + 40_000
    assert second == read_whole(tmp_path, ended)
    assert (second.attempt, second.first_step, second.last_step) == (0, 1, 15)


def test_reading_on_finds_what_reading_all_at_once_does(tmp_path: Path) -> None:
    chosen = random.Random(5)
    at, step = 1000.0, 0
    for attempt in range(6):
        append(tmp_path, "launches/trainer-0.jsonl", {"attempt": attempt, "at": at, "kind": "start"})
        step = max(0, step - chosen.randrange(0, 30))
        for _ in range(chosen.randrange(1, 40)):
            step, step_s = step + 1, chosen.choice([1.0, 1.0, 1.1, 3.0])
            wait_s = chosen.choice([0.0, 0.0, 0.5])
            at += step_s + wait_s + chosen.choice([0.0, 0.0, 20.0])
            line = {"attempt": attempt, "step": step, "at": at, "step_time_s": step_s, "checkpoint_wait_s": wait_s}
            append(tmp_path, "metrics/rank-0.jsonl", line)
            if chosen.random() < 0.2:
                assert read_run_time(tmp_path, "trainer", at) == read_whole(tmp_path, at)
    assert read_run_time(tmp_path, "trainer", at + 100) == read_whole(tmp_path, at + 100)


def test_a_line_that_is_being_written_counts_once_it_is_complete(tmp_path: Path) -> None:
    ended = append_attempt(tmp_path, 0, range(1, 11), 1000.0)
    with (tmp_path / "metrics/rank-0.jsonl").open("a") as file:
        file.write('{"attempt": 0, "step": 11, "at": 1021.5, ')
    assert read_run_time(tmp_path, "trainer", ended) is not None
    with (tmp_path / "metrics/rank-0.jsonl").open("a") as file:
        file.write('"step_time_s": 1.5}\n')
    found = read_run_time(tmp_path, "trainer", ended)
    assert found is not None
    assert found.last_step == 11


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    ended = append_attempt(tmp_path, 0, range(1, 11), 1000.0)
    kept = read_run_time(tmp_path, "trainer", ended)
    metrics = tmp_path / "metrics/rank-0.jsonl"
    content = metrics.read_bytes()
    with metrics.open("r+b") as file:
        file.write(b"x" * (len(content) - 1) + b"\n")  # of the same file and size: it is not read again
    assert read_run_time(tmp_path, "trainer", ended) == kept


@pytest.mark.parametrize("change", ["replaced", "shortened"])
def test_another_file_in_its_place_is_read_anew(tmp_path: Path, change: str) -> None:
    ended = append_attempt(tmp_path, 0, range(1, 11), 1000.0)
    read_run_time(tmp_path, "trainer", ended)
    metrics = tmp_path / "metrics/rank-0.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    if change == "replaced":
        (tmp_path / "new").write_bytes(b"".join([*lines[:5], *lines[:5]]))
        (tmp_path / "new").rename(metrics)
    else:
        metrics.write_bytes(b"".join(lines[:4]))
    found = read_run_time(tmp_path, "trainer", ended)
    assert found == read_whole(tmp_path, ended)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"version": 2}', b'{"version": 1, "positions": {"metrics/rank-0.jsonl": -5}}']
)
def test_a_state_that_is_invalid_is_not_used(tmp_path: Path, content: bytes) -> None:
    ended = append_attempt(tmp_path, 0, range(1, 11), 1000.0)
    (tmp_path / STATE_FILE).write_bytes(content)
    assert read_run_time(tmp_path, "trainer", ended) == read_whole(tmp_path, ended)
