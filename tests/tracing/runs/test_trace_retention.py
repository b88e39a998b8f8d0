"""The oldest traces go first when the disk limit of a collector is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tracing.spool import TRACE

from muster.tracing.collect.spool_collector import Collector, CollectorOptions, start_collector
from muster.tracing.runs.trace_files import read_manifest
from muster.tracing.shared_folder import SharedFolder


def spooled(run_dir: Path, rank: int, start: int) -> None:
    spool = run_dir / "traces" / "spool"
    spool.mkdir(parents=True, exist_ok=True)
    (spool / f"rank-{rank}.attempt-0.steps-{start}-{start + 5}.json").write_bytes(TRACE)


def collect(run_dir: Path, **options: object) -> Collector:
    collector = start_collector(CollectorOptions(run_dir, "trainer", 0, **options), 1.0)  # type: ignore[arg-type]
    assert collector.collect_finished(2.0) > 0
    return collector


def files(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "traces").glob("rank-*"))


def statuses(run_dir: Path) -> dict[int, str]:
    manifest = read_manifest(SharedFolder(run_dir), "manifest-trainer-0.json")
    return {entry.start_step: entry.status for entry in manifest.traces}


@pytest.fixture
def size(tmp_path: Path) -> int:
    """Of one stored trace."""
    spooled(tmp_path / "one", 0, 10)
    collect(tmp_path / "one")
    (file,) = (tmp_path / "one" / "traces").glob("*.gz")
    return file.stat().st_size


def test_above_the_limit_the_oldest_are_deleted_and_the_manifest_says_so(tmp_path: Path, size: int) -> None:
    run = tmp_path / "run"
    for start in (30, 10, 20):
        spooled(run, 0, start)
    collect(run, max_stored_bytes=2 * size + 10)
    assert files(run) == [f"rank-0.attempt-0.steps-{start}-{start + 5}.json.gz" for start in (20, 30)]
    assert statuses(run) == {10: "dropped", 20: "ok", 30: "ok"}
    entry = read_manifest(SharedFolder(run), "manifest-trainer-0.json").traces[0]
    assert "had more than" in (entry.reason or "")
    spooled(run, 0, 40)
    collect(run, max_stored_bytes=2 * size + 10)
    assert statuses(run) == {10: "dropped", 20: "dropped", 30: "ok", 40: "ok"}


def test_a_manifest_lists_a_bounded_number_of_traces_and_the_files_of_the_oldest_are_deleted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for start in (10, 20, 30, 40):
        spooled(run, 0, start)
    (run / "traces/spool/rank-0.attempt-0.steps-20-25.json").write_bytes(TRACE[:-20])  # corrupt
    collect(run, max_entries=2)
    assert statuses(run) == {30: "ok", 40: "ok"}
    assert files(run) == [f"rank-0.attempt-0.steps-{start}-{start + 5}.json.gz" for start in (30, 40)]
    assert list((run / "traces/corrupt").iterdir()) == []
    summaries = {path.name.removesuffix(".parquet") for path in run.glob("traces/summaries/*")}
    assert summaries == {f"rank-0.attempt-0.steps-{start}-{start + 5}" for start in (30, 40)}


def test_the_traces_of_the_newest_steps_stay_whatever_their_size(tmp_path: Path, size: int) -> None:
    for rank in (0, 1):
        spooled(tmp_path, rank, 20)
    collect(tmp_path, max_stored_bytes=size // 2)
    assert len(files(tmp_path)) == 2


def test_a_trace_that_is_in_the_store_stays_in_the_manifest(tmp_path: Path, size: int) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    for start in (10, 20):
        spooled(run, 0, start)
    collect(run, max_stored_bytes=size, store=str(store))
    assert files(run) == ["rank-0.attempt-0.steps-20-25.json.gz"]
    assert statuses(run) == {10: "ok", 20: "ok"}
    assert len(list((store / "traces").glob("*.gz"))) == 2


def test_a_collector_that_was_killed_after_it_deleted_a_trace_records_it_the_next_time(
    tmp_path: Path, size: int
) -> None:
    for start in (10, 20):
        spooled(tmp_path, 0, start)
    collect(tmp_path)
    (tmp_path / "traces" / "rank-0.attempt-0.steps-10-15.json.gz").unlink()  # and the manifest lists it
    spooled(tmp_path, 0, 30)
    collect(tmp_path, max_stored_bytes=2 * size + 10)
    assert statuses(tmp_path) == {10: "dropped", 20: "ok", 30: "ok"}
    assert len(files(tmp_path)) == 2


def test_while_the_store_cannot_be_reached_the_oldest_traces_are_deleted_above_the_limit(
    tmp_path: Path, size: int
) -> None:
    run, blocked = tmp_path / "run", tmp_path / "blocked"
    blocked.write_text("a file in place of the store's folder")
    for start in (10, 20, 30, 40):
        spooled(run, 0, start)
    limit = 2 * (len(TRACE) + size) + 10
    options = CollectorOptions(run, "trainer", 0, store=str(blocked / "store"), max_stored_bytes=limit)
    collector = start_collector(options, 1.0)
    assert collector.collect_finished(2.0) == 0
    waiting = [f"rank-0.attempt-0.steps-{start}-{start + 5}.json" for start in (30, 40)]
    assert sorted(path.name for path in (run / "traces" / "claimed" / "trainer-0").glob("rank-*")) == waiting
    assert files(run) == [f"{name}.gz" for name in waiting]
    manifest = read_manifest(SharedFolder(run), "manifest-trainer-0.json")
    assert [(entry.start_step, entry.status) for entry in manifest.traces] == [(10, "dropped"), (20, "dropped")]
    assert "deleted: the traces that wait had more than" in (manifest.traces[0].reason or "")
    assert [one.file for one in manifest.waiting] == waiting
    blocked.unlink()
    assert collector.collect_finished(100.0) == 2
    assert statuses(run) == {10: "dropped", 20: "dropped", 30: "ok", 40: "ok"}


def test_waiting_traces_of_the_newest_steps_stay_whatever_their_size(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("x")
    for rank in (0, 1):
        spooled(tmp_path / "run", rank, 10)
    options = CollectorOptions(tmp_path / "run", "trainer", 0, store=f"{tmp_path}/blocked/store", max_stored_bytes=1)
    start_collector(options, 1.0).collect_finished(2.0)
    assert len(list((tmp_path / "run" / "traces" / "claimed" / "trainer-0").glob("rank-*"))) == 2
