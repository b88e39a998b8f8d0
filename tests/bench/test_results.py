"""The file of results: what it keeps when a process is killed, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.support import has

from muster.bench.results import JobRef, ResultsFile, RunKey, RunRecord, parse_record, read_results
from muster.errors import InvalidSpec, Refused

PLAN = {"kind": "run", "suite": {"name": "s"}}
RECORD = RunRecord("one@A", 0, wall_s=[3.0, 1.0, 2.0, 1.5], total_cpu_s=0.5)


def test_a_file_is_continued_with_its_runs_and_jobs_and_a_run_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "r.jsonl"
    first = ResultsFile(path, PLAN)
    first.add_job(JobRef("bench-s-1", "default"))
    assert first.add_run(RECORD)
    assert not first.add_run(RECORD)
    again = ResultsFile(path, PLAN)
    assert again.runs == {RunKey("one@A", 0): RECORD}
    assert again.jobs == [JobRef("bench-s-1", "default")]
    assert again.missing([RunKey("one@A", 0), RunKey("one@A", 1)]) == [RunKey("one@A", 1)]


def test_a_line_that_a_kill_cut_off_is_lost_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = ResultsFile(path, PLAN)
    first.add_run(RECORD)
    first.add_run(RunRecord("one@A", 1))
    path.write_bytes(path.read_bytes()[:-9])
    ResultsFile(path, PLAN).add_run(RunRecord("one@A", 2))
    assert [key.repetition for key in read_results(path)[1]] == [0, 2]


def test_results_of_another_plan_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ResultsFile(path, PLAN)
    with pytest.raises(Refused, check=has("different: kind", reason="DifferentPlan", field="--out")):
        ResultsFile(path, {**PLAN, "kind": "compare"})


@pytest.mark.parametrize("text", ["hello", "[]", '{"plan": {}, "version": 2}'])
def test_another_file_is_not_taken_for_results(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(InvalidSpec):
        ResultsFile(path, PLAN)
    assert path.read_text() == text


def test_the_value_of_a_run_is_the_median_after_the_warm_up() -> None:
    assert RECORD.value("wall", 1) == 1.5
    assert RECORD.value("wall", 0) == 1.75
    assert RECORD.value("wall", 1, 0.25) == 1.25
    assert RECORD.value("cpu", 0) is None
    assert RECORD.value("totalCpu", 99) == 0.5
    with pytest.raises(InvalidSpec, check=has("warmup: must be below the number of iterations of one@A, 4; got 4")):
        RECORD.value("wall", 4)


def test_only_lines_of_the_runner_are_records() -> None:
    line = '{"muster_bench": {"program": "one@A", "repetition": 3, "wall_s": [1.0]}}'
    assert parse_record(line) == RunRecord("one@A", 3, wall_s=[1.0])
    for other in ("", "hello", "{}", '{"muster_bench": 3}', f"x{line}", line[:-9]):
        assert parse_record(other) is None
