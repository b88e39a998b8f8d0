"""Input that would give wrong numbers is named in the notes."""

from __future__ import annotations

import gzip
import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from tests.tracing.kineto import Event, GpuRank, gpu_job, training_steps, write_trace

from muster.errors import InvalidTrace
from muster.tracing.report import build


@pytest.mark.parametrize("duration", [1e300, -5.0, float("nan")])
def test_events_without_a_valid_duration_are_counted_and_not_included(tmp_path: Path, duration: float) -> None:
    events = [*training_steps(), Event("aten::mm", 10, duration)]
    report = build(write_trace(tmp_path / "t.json", events))
    assert report.traces[0].trace.window_s == 0.003
    assert "1 event has no valid time or duration and is not included (rank 0: 1)." in report.notes


def test_one_file_given_twice_counts_once(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", training_steps())
    report = build([path, tmp_path / "." / "t.json", tmp_path / ".." / tmp_path.name / "t.json"])
    assert len(report.traces) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_copies_of_a_trace_count_once_and_are_named(tmp_path: Path, packed: bool) -> None:
    ranks = [GpuRank(), GpuRank(extra=4)]
    alone = build(gpu_job(tmp_path / "alone", ranks))
    folder = gpu_job(tmp_path / "copied", ranks)
    text = (folder / "rank0.json").read_bytes()
    copy = folder / ("zcopy.json.gz" if packed else "zcopy.json")
    copy.write_bytes(gzip.compress(text) if packed else text)
    report = build(folder)
    assert (report.kernels, report.verdicts) == (alone.kernels, alone.verdicts)
    assert [(one.file, one.reason) for one in report.skipped] == [(copy.name, "has the same events as rank0.json")]


def test_several_traces_of_one_rank_are_named(tmp_path: Path) -> None:
    for name, compute_us in (("a", 600), ("b", 500)):
        write_trace(tmp_path / f"{name}.json", training_steps(compute_us=compute_us), rank=3, world_size=4)
    assert any("several traces of rank 3" in sentence for sentence in build(tmp_path).notes)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_trace(tmp_path / f"{rank}.json", training_steps(), rank=rank, world_size=5)
    (sentence,) = [s for s in build(tmp_path).notes if "of 5 ranks" in s]
    assert "there is none of ranks 1, 3 and 4" in sentence


@pytest.mark.parametrize(
    ("world_size", "end"), [(17, "14, 15 and 16"), (18, "14, 15 and 2 more"), (100, "15 and 84 more")]
)
def test_of_many_missing_ranks_the_first_are_named_and_the_others_counted(
    tmp_path: Path, world_size: int, end: str
) -> None:
    write_trace(tmp_path / "0.json", training_steps(), world_size=world_size)
    (sentence,) = [s for s in build(tmp_path).notes if f"of {world_size} ranks" in s]
    assert f"{end}. Findings" in sentence


def test_traces_of_different_runs_are_not_merged(tmp_path: Path) -> None:
    for rank, world in ((0, 2), (1, 8)):
        write_trace(tmp_path / f"{rank}.json", training_steps(), rank=rank, world_size=world)
    assert build(tmp_path).missing == (
        "The ranks are not compared: the traces are of different runs (of 2 and 8 ranks).",
    )


def test_ranks_of_runs_of_the_same_size_are_not_compared(tmp_path: Path) -> None:
    """Rank 1 is of a run 80 minutes later, with other steps."""
    first = gpu_job(tmp_path / "first", [GpuRank()] * 2)
    later = gpu_job(tmp_path / "later", [GpuRank(kernel_ms=9)] * 2, clock_us=[5e9, 5e9])
    shutil.move(later / "rank1.json", first / "rank1.json")
    report = build(first)
    assert report.verdicts == ()
    why = "the traces are of different runs (rank 1 is 1h23m after rank 0)"
    assert report.missing == (f"The ranks are not compared: {why}.",)


def test_hosts_whose_clocks_differ_by_an_hour_are_compared(tmp_path: Path) -> None:
    """Their collectives end together."""
    report = build(gpu_job(tmp_path, [GpuRank(), GpuRank(extra=4)], clock_us=[0.0, 3.6e9]))
    assert [verdict.ranks for verdict in report.verdicts] == [(1,)]


def test_more_traced_steps_are_no_extra_work(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path / "six", [GpuRank()] * 2, steps=6)
    shutil.move(gpu_job(tmp_path / "four", [GpuRank()] * 2, steps=4) / "rank1.json", folder / "rank1.json")
    assert build(folder).verdicts == ()


def test_different_numbers_of_steps_are_named(tmp_path: Path) -> None:
    for rank, steps in ((0, 3), (1, 2)):
        write_trace(tmp_path / f"{rank}.json", training_steps(steps), rank=rank, world_size=2)
    expected = "The traces have different numbers of steps, 2 to 3; only the 2 that all have are used."
    assert expected in build(tmp_path).notes


def test_json_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    with pytest.raises(InvalidTrace, match="nothing to report"):
        build(tmp_path)


def test_files_that_are_given_and_are_no_traces_are_named(tmp_path: Path) -> None:
    other = tmp_path / "notes.json"
    other.write_text('{"a": 1}')
    with pytest.raises(InvalidTrace, match=r"notes\.json \(.*traceEvents"):
        build(other)
    trace = write_trace(tmp_path / "t.json", training_steps())
    assert [one.file for one in build([trace, other]).skipped] == ["notes.json"]
    assert build(tmp_path).skipped == ()


@pytest.mark.parametrize("world_size", [10**9, 2**62, 10**30])
def test_an_impossible_number_of_ranks_costs_no_time_and_no_memory(tmp_path: Path, world_size: int) -> None:
    path = write_trace(tmp_path / "t.json", training_steps(), world_size=world_size)
    tracemalloc.start()
    try:
        report = build(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    named = [sentence for sentence in report.notes if "There are traces of 1 of" in sentence]
    assert [len(sentence) < 300 for sentence in named] == [True] * (world_size == 10**9)


@pytest.mark.parametrize("field", ["rank", "world_size"])
def test_a_truth_value_is_no_rank(tmp_path: Path, field: str) -> None:
    path = write_trace(tmp_path / "t.json", training_steps())
    document = json.loads(path.read_text())
    document["distributedInfo"][field] = True
    path.write_text(json.dumps(document))
    trace = build(path).traces[0].trace
    assert (trace.rank, trace.world_size) == ((None, 1) if field == "rank" else (0, None))
