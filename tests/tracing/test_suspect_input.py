"""Input that would give wrong numbers is named in the findings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.tracing.kineto import Event, training_steps, write_trace

from muster.errors import InvalidTrace
from muster.tracing.report import build


@pytest.mark.parametrize("duration", [1e300, -5.0, float("nan")])
def test_events_without_a_valid_duration_are_counted_and_not_included(tmp_path: Path, duration: float) -> None:
    events = [*training_steps(), Event("aten::mm", 10, duration)]
    report = build(write_trace(tmp_path / "t.json", events))
    assert report.traces[0].trace.window_s == 0.003
    assert "1 events have no valid time or duration and are not included (rank 0: 1)." in report.findings


def test_one_file_given_twice_counts_once(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", training_steps())
    report = build([path, tmp_path / "." / "t.json", tmp_path / ".." / tmp_path.name / "t.json"])
    assert len(report.traces) == 1


def test_several_traces_of_one_rank_are_named(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", training_steps(), rank=3, world_size=4)
    shutil.copy(path, tmp_path / "b.json")
    assert any("several traces of rank 3" in sentence for sentence in build(tmp_path).findings)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_trace(tmp_path / f"{rank}.json", training_steps(), rank=rank, world_size=5)
    (sentence,) = [s for s in build(tmp_path).findings if "of 5 ranks" in s]
    assert "there is none of ranks 1, 3 and 4" in sentence


def test_traces_of_different_runs_are_not_merged(tmp_path: Path) -> None:
    for rank, world in ((0, 2), (1, 8)):
        write_trace(tmp_path / f"{rank}.json", training_steps(), rank=rank, world_size=world)
    assert any("different runs" in sentence for sentence in build(tmp_path).findings)


def test_different_numbers_of_steps_are_named(tmp_path: Path) -> None:
    for rank, steps in ((0, 3), (1, 2)):
        write_trace(tmp_path / f"{rank}.json", training_steps(steps), rank=rank, world_size=2)
    expected = "The traces have different numbers of steps, 2 to 3; only the 2 that all have are used."
    assert expected in build(tmp_path).findings


def test_json_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    with pytest.raises(InvalidTrace, match="nothing to report"):
        build(tmp_path)
