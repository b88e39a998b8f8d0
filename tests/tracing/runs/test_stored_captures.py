"""The captures of a run folder: steps, ranks with and without a trace, sizes, what is not stored yet."""

from __future__ import annotations

import os
from pathlib import Path

from muster.tracing.runs.stored_captures import stored_captures
from muster.tracing.runs.trace_files import Manifest, MissingRanks, TraceEntry, write_manifest
from muster.tracing.shared_folder import SharedFolder


def entry(rank: int, steps: tuple[int, int], *, at: float = 1.0, status: str = "ok", size: int = 10) -> TraceEntry:
    start, end = steps
    name = f"rank-{rank}.attempt-0.steps-{start}-{end}.json.gz"
    return TraceEntry(name, rank, 0, start, end, size, 10 * size, "", status, None, at)  # type: ignore[arg-type]


def manifest(folder: Path, index: int, *traces: TraceEntry, missing: tuple[MissingRanks, ...] = ()) -> None:
    (folder / "traces").mkdir(exist_ok=True)
    snapshots = (entry(0, (50, 52), at=3.0),) if index == 0 else ()
    found = Manifest("trainer", index, traces, missing=missing, snapshots=snapshots)
    write_manifest(SharedFolder(folder), found, owner="test")


def test_captures_of_all_pods_are_listed_newest_first_with_ranks_and_sizes(tmp_path: Path) -> None:
    manifest(tmp_path, 0, entry(1, (20, 25)), entry(0, (20, 25), at=2.0), entry(0, (40, 45), status="corrupt"))
    manifest(tmp_path, 1, entry(2, (20, 25)), missing=(MissingRanks(0, 20, 25, (2, 3)),))
    memory, damaged, whole = stored_captures(SharedFolder(tmp_path))
    assert (memory.kind, memory.start_step, memory.ranks) == ("memory", 50, [0])
    assert (damaged.start_step, damaged.ranks, damaged.lost, damaged.collected_at) == (40, [], 1, 0.0)
    assert (whole.start_step, whole.end_step, whole.ranks, whole.missing) == (20, 25, [0, 1, 2], [3])
    assert (whole.bytes, whole.raw_bytes, whole.collected_at, whole.lost) == (30, 300, 2.0, 0)


def test_a_trace_that_was_written_again_counts_once(tmp_path: Path) -> None:
    manifest(tmp_path, 1, entry(0, (20, 25), at=1.0, size=10))
    manifest(tmp_path, 2, entry(0, (20, 25), at=2.0, size=30))
    (found,) = stored_captures(SharedFolder(tmp_path))
    assert (found.ranks, found.bytes) == ([0], 30)


def test_traces_in_the_spool_or_claimed_are_not_stored_yet(tmp_path: Path) -> None:
    manifest(tmp_path, 1, entry(0, (20, 25)))
    for folder, rank in (("spool", 1), ("claimed/trainer-1", 2)):
        (tmp_path / "traces" / folder).mkdir(parents=True)
        (tmp_path / f"traces/{folder}/rank-{rank}.attempt-0.steps-20-25.json").touch()
    (tmp_path / "traces/spool/rank-3.attempt-0.steps-20-25.json.tmp").touch()
    (found,) = stored_captures(SharedFolder(tmp_path))
    assert (found.ranks, found.waiting) == ([0], 2)


def test_a_run_folder_without_traces_or_with_links_in_place_of_them_has_no_captures(tmp_path: Path) -> None:
    assert stored_captures(SharedFolder(tmp_path)) == []
    outside = tmp_path / "outside"
    outside.mkdir()
    manifest(outside, 1, entry(0, (20, 25)))
    (tmp_path / "run").mkdir()
    os.symlink(outside / "traces", tmp_path / "run" / "traces")
    assert stored_captures(SharedFolder(tmp_path / "run")) == []
