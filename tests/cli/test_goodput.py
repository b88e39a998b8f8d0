"""What the time of jobs was spent on, as a table and as a sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job, status

from muster.cli.views.goodput import JobGoodput, goodput_table, goodput_text
from muster.tracing.runs.launches import RunRecordReader
from muster.tracing.shared_folder import SharedFolder
from muster.usage.goodput import Launch

SPENT = {
    "waiting/QuotaExceeded": 600.0,
    "start": 60.0,
    "productive": 16_200.0,
    "lost": 1_320.0,
    "recovery": 120.0,
    "unknown": 3.0,
}


def test_a_sentence_names_the_productive_part_and_what_was_done_again() -> None:
    found = JobGoodput("default", "a", "red", "Running", 1, 2, ("n1",), SPENT)
    assert (
        goodput_text(found)
        == "of 5h05m 89% productive, 3% waiting, 1% recovery; 22m00s of steps done again in 2 restarts"
    )


def test_without_records_of_steps_no_productive_part_is_claimed() -> None:
    assert goodput_text(JobGoodput("default", "a", "red", "Running", 0, 0, (), {"start": 10.0, "running": 90.0})) == (
        "of 1m40s 90% running, 10% start"
    )
    assert goodput_text(JobGoodput("default", "a", "red", "Pending", 0, 0, (), {})) == ""


def test_the_table_has_a_line_per_job_and_one_per_queue_of_several() -> None:
    other = {"start": 10.0, "productive": 30.0}
    found = [JobGoodput("default", name, "red", "Running", 0, 0, ("n2", name), other) for name in ("a", "b")]
    found.append(JobGoodput("default", "c", "blue", "Running", 0, 0, ("n1",), SPENT))
    page = Console(file=io.StringIO(), width=200)
    page.print(goodput_table(found))
    assert isinstance(page.file, io.StringIO)
    lines = [line.split() for line in page.file.getvalue().splitlines()]
    assert lines[0] == ["QUEUE", "JOB", "TIME", "WAITING", "START", "PRODUCTIVE", "LOST", "RECOVERY", "UNKNOWN"]
    assert lines[1] == ["red", "(2", "jobs)", "1m20s", "25.0%", "75.0%"]
    assert lines[2][:3] == ["red", "default/a", "40s"]
    assert lines[4][:4] == ["blue", "default/c", "5h05m", "3.3%"]
    page = Console(file=io.StringIO(), width=200)
    page.print(goodput_table(found, "node"))
    assert isinstance(page.file, io.StringIO)
    lines = [line.split() for line in page.file.getvalue().splitlines()]
    assert [line[:3] for line in lines[:-1]] == [
        ["NODE", "JOB", "TIME"], ["a", "default/a", "40s"], ["b", "default/b", "40s"], ["n1", "default/c", "5h05m"],
        ["n2", "(2", "jobs)"],
    ]  # fmt: skip


def test_as_json_it_is_a_list_with_the_seconds_of_each_job(cluster: MemoryClient, muster: Muster) -> None:
    waited = {"milliseconds": {"waiting/QuotaExceeded": 60_000}, "cause": "", "since": 60.0}
    cluster.kept_jobs = {"a": job("a", status("Pending", "QuotaExceeded", "x", timeSpent=waited))}
    ended = muster("usage", "--goodput", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == [
        {"namespace": "default", "job": "a", "queue": "research", "phase": "Pending", "restarts": 0,
         "attempt": 0, "nodes": [],
         "seconds": {"waiting/QuotaExceeded": 60.0}}
    ]  # fmt: skip


@pytest.mark.parametrize("option", [("--by", "user"), ("--until", "1d"), ("--step", "hour")])
def test_options_that_it_does_not_have_are_refused(muster: Muster, option: tuple[str, str]) -> None:
    ended = muster("usage", "--goodput", *option)
    assert (ended.code, option[0] in ended.err) == (2, True)


def test_records_of_a_run_folder_leave_out_what_cannot_be_read(tmp_path: Path) -> None:
    for name in ("launches", "metrics"):
        (tmp_path / name).mkdir()
    launches = [{"attempt": 0, "at": 5.0, "kind": "start"}, {"attempt": 0, "at": 1, "kind": "other"}, {"attempt": -1}]
    (tmp_path / "launches" / "trainer-0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in launches))
    steps = [
        {"step": 1, "attempt": 0, "at": 9.0, "step_time_s": 2.0, "trace_start_s": 0.5, "trace_write_s": 0.25},
        {"step": 2, "attempt": 0, "at": 12.0, "step_time_s": None, "checkpoint_wait_s": 0.125},
    ]
    (tmp_path / "metrics" / "rank-0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps) + '{"step"')
    (tmp_path / "events.jsonl").write_text('{"kind": "stopping", "attempt": 0, "at": 3}\n{"kind": "saved"}\n')
    found = RunRecordReader(SharedFolder(tmp_path), "trainer").records()
    assert found.launches == (Launch(0, 5.0, "start"),)
    (attempt,) = found.steps.attempts.values()
    assert (attempt.first_step, attempt.first_s, attempt.last_step, attempt.last_at) == (1, 2.0, 2, 12.0)
    assert attempt.seconds == {"checkpoint": 0.125, "unknown": 2.875}
    assert found.stopped == {0}
    empty = RunRecordReader(SharedFolder(tmp_path / "none"), "trainer").records()
    assert (empty.launches, empty.steps.attempts, empty.stopped) == ((), {}, frozenset())
