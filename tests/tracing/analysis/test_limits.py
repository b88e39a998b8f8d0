"""Limits for traces that are small as files and large in memory: rejected before they are read completely."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import trace_text, training_steps
from tests.tracing.spool import collected, manifest_of, run_once, spooled

from muster.errors import InvalidTrace, Refused
from muster.tracing.read import column_builder
from muster.tracing.read.json_stream import TraceLimits
from muster.tracing.reader import read_trace
from muster.tracing.report import build
from muster.tracing.runs import run_folder, run_store

__all__ = ["muster"]  # a fixture

SMALL = TraceLimits(text_bytes=10 << 20, events=1000)
EVENT = b'{"ph":"X","cat":"c","name":"n","ts":1,"dur":1}'


def packed(path: Path, parts: Iterator[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as out:
        for part in parts:
            out.write(part)
    return path


def of_skipped_events(mib: int) -> Iterator[bytes]:
    """`mib` MiB of text with one event that is kept."""
    block = b'{"ph":"i","s":"' + b"x" * 1000 + b'"},'
    yield b'{"traceEvents":['
    for _ in range(mib):
        yield block * ((1 << 20) // len(block))
    yield b'{"ph":"X","cat":"c","name":"n","ts":1,"dur":1}]}'


def of_events(count: int, **fields: Any) -> Iterator[bytes]:
    yield b'{"traceEvents":['
    for number in range(count):
        event = json.loads(EVENT) | {key: value.format(number) for key, value in fields.items()}
        yield json.dumps(event).encode() + b","
    yield EVENT + b"]}"


def test_a_trace_above_the_size_limit_is_rejected_without_reading_the_rest(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.json.gz", of_skipped_events(40))
    assert path.stat().st_size < 2 << 20
    with pytest.raises(InvalidTrace, match="must have at most 10485760 bytes uncompressed \\(--max-trace-bytes\\)"):
        read_trace(path, SMALL)
    assert read_trace(path, TraceLimits(text_bytes=64 << 20)).decoded_events > 1000


@pytest.mark.parametrize("fields", [{}, {"ph": "M", "name": "thread_name", "tid": "{}", "args": "{}"}])
def test_a_trace_above_the_event_limit_is_rejected(tmp_path: Path, fields: dict[str, str]) -> None:
    if fields:  # names of threads are also kept
        events = [{"ph": "M", "name": "thread_name", "tid": number, "args": {"name": "x"}} for number in range(1500)]
        text = json.dumps({"traceEvents": [*events, json.loads(EVENT)]}).encode()
        path = packed(tmp_path / "x.json.gz", iter([text]))
    else:
        path = packed(tmp_path / "x.json.gz", of_events(1500))
    with pytest.raises(InvalidTrace, match="must have at most 1000 events \\(--max-trace-events\\)"):
        read_trace(path, SMALL)
    assert read_trace(path, TraceLimits(events=2000)).decoded_events == 1501


def test_event_names_above_the_limit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "x.json.gz", of_events(100, name="name-{}" + "x" * 1000))
    monkeypatch.setattr(column_builder, "MAX_NAME_CHARACTERS", 50_000)
    with pytest.raises(InvalidTrace, match="at most 50000 characters"):
        read_trace(path)
    same = packed(tmp_path / "same.json.gz", of_events(100, name="x" * 1000))
    assert read_trace(same).decoded_events == 101


def test_the_report_lists_skipped_traces_and_shows_the_others(tmp_path: Path, muster: Muster) -> None:
    folder = tmp_path / "logs"
    packed(folder / "large.json.gz", of_skipped_events(3))
    (folder / "good.json").write_bytes(trace_text(training_steps(3)))
    assert build(folder, limits=TraceLimits(text_bytes=1 << 20)).skipped[0].file == "large.json.gz"
    ended = muster("report", str(folder), "--max-trace-bytes", "1Mi", "--json")
    assert ended.code == 0
    (report,) = json.loads(ended.out)
    assert len(report["traces"]) == 1
    (left_out,) = report["skipped"]
    assert "--max-trace-bytes" in left_out["reason"]
    assert len(json.loads(muster("report", str(folder), "--json").out)[0]["traces"]) == 2
    ended = muster("report", str(folder), "--max-trace-events", "10", "--json")
    (report,) = json.loads(ended.out)
    assert [entry["reason"] for entry in report["skipped"]] == ["must have at most 10 events (--max-trace-events)"]
    for wrong in (("--max-trace-bytes", "lots"), ("--max-trace-bytes", "0"), ("--max-trace-events", "0")):
        ended = muster("report", str(folder), *wrong)
        assert ended.code == 2
        assert wrong[0] in ended.err
        assert "memory" not in ended.err, "the option is named, not a resource"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_limits_hold_in_every_process_that_reads_traces(tmp_path: Path, workers: int) -> None:
    packed(tmp_path / "bytes.json.gz", of_skipped_events(3))
    packed(tmp_path / "events.json.gz", of_events(1500))
    (tmp_path / "good.json").write_bytes(trace_text(training_steps(3)))
    limits = TraceLimits(text_bytes=1 << 20, events=1000)
    skipped = {file.file: file.reason for file in build(tmp_path, workers=workers, limits=limits).skipped}
    assert skipped == {
        "bytes.json.gz": "must have at most 1048576 bytes uncompressed (--max-trace-bytes)",
        "events.json.gz": "must have at most 1000 events (--max-trace-events)",
    }


def test_the_option_for_events_is_the_limit_of_the_reader(tmp_path: Path, muster: Muster) -> None:
    folder = tmp_path / "logs"
    packed(folder / "large.json.gz", of_events(1500))
    (folder / "good.json").write_bytes(trace_text(training_steps(3)))
    (report,) = json.loads(muster("report", str(folder), "--max-trace-events", "1000", "--json").out)
    assert [one["file"] for one in report["skipped"]] == ["large.json.gz"]
    (report,) = json.loads(muster("report", str(folder), "--json").out)
    assert report["skipped"] == []


def test_the_help_of_report_shows_the_default_limits(muster: Muster) -> None:
    shown = muster("report", "--help").out
    for limit in ("4Gi", "12000000", "16Gi"):
        assert limit in shown


def test_the_collector_quarantines_a_trace_above_its_size_limit(tmp_path: Path, undisturbed: None) -> None:
    content = gzip.compress(b"".join(of_skipped_events(3)))
    spooled(tmp_path, 0, content=content)
    spooled(tmp_path, 1)
    large = spooled(tmp_path, 2)
    with large.open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file
    assert run_once(tmp_path, "--max-trace-bytes", "1Mi") == 0
    entries = manifest_of(tmp_path).traces
    assert {entry.rank: entry.status for entry in entries} == {0: "corrupt", 1: "ok", 2: "corrupt"}
    assert all("--max-trace-bytes" in str(entry.reason) for entry in entries if entry.status == "corrupt")
    assert not collected(tmp_path, 0).exists()


def test_metrics_and_heartbeats_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("metrics", "heartbeats"):
        (tmp_path / name).mkdir()
    line = '{"step": 1, "step_time_s": 0.1, "loss": 1.0}\n'
    (tmp_path / "metrics/rank-0.jsonl").write_text(line * 10 + "x" * 10_000)
    (tmp_path / "heartbeats/rank-0.json").write_text('{"rank": 0, "more": "' + "x" * 100_000 + '"}')
    monkeypatch.setattr(run_folder, "MAX_LINES_BYTES", 5 * len(line))
    left_out = {one.file: one.reason for one in run_folder.read_run_folder(tmp_path).skipped}
    assert "only the first 225 bytes are read" in left_out["metrics/rank-0.jsonl"]
    assert "must have at most 65536 bytes" in left_out["heartbeats/rank-0.json"]


def test_a_run_above_the_fetch_limit_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    store = tmp_path / "store"
    packed(store / "traces/rank-0.attempt-0.steps-1-2.json.gz", of_events(1000))
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    with pytest.raises(Refused) as refusal:
        run_store.fetch_run(f"file://{store}", tmp_path / "here", max_bytes=size - 1)
    assert refusal.value.reason == "TooLarge"
    assert "--max-fetch-bytes" in str(refusal.value)
    assert not (tmp_path / "here").exists()
    assert run_store.fetch_run(f"file://{store}", tmp_path / "here", max_bytes=size).traces == 1


def test_the_number_of_fetched_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    for rank in range(3):
        packed(store / f"traces/rank-{rank}.attempt-0.steps-1-2.json.gz", of_events(1))
    monkeypatch.setattr(run_store, "_MAX_FETCHED_FILES", 2)
    with pytest.raises(Refused) as refusal:
        run_store.fetch_run(f"file://{store}", tmp_path / "here")
    assert refusal.value.reason == "TooLarge"
    assert not (tmp_path / "here").exists()
    monkeypatch.setattr(run_store, "_MAX_FETCHED_FILES", 3)
    assert run_store.fetch_run(f"file://{store}", tmp_path / "here").traces == 3
