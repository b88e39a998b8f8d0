"""Traces of the configured steps and ranks: complete, with job, rank and steps in the file."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.ranks.step_account import Use
from muster.tracing.runs.run_folder import read_run_folder
from muster_components.trainer.errors import EXIT_OK, EXIT_STOPPED

from .conftest import TINY, Starter, events, metrics

pytestmark = pytest.mark.slow


@pytest.mark.smoke
def test_each_rank_writes_the_configured_steps(start: Starter, text: Path) -> None:
    ranks = start(
        2, *TINY, "--data", str(text), "--steps", "8",
        environ={"MUSTER_TRACE_STEPS": "3:6", "MUSTER_JOB": "learn"}, attempt=4,
    )  # fmt: skip
    assert ranks.end() == [EXIT_OK] * 2
    spool = ranks.run_dir / "traces" / "spool"
    assert sorted(file.name for file in spool.iterdir()) == [
        "rank-0.attempt-4.steps-3-6.json",
        "rank-1.attempt-4.steps-3-6.json",
    ]
    for rank in (0, 1):
        trace = json.loads((spool / f"rank-{rank}.attempt-4.steps-3-6.json").read_text())
        named = {event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"}
        assert {name for name in named if name.startswith("ProfilerStep#")} == {f"ProfilerStep#{k}" for k in (3, 4, 5)}
        assert {"data", "forward", "backward", "clip", "optimizer", "report"} <= named
        assert {name for name in named if name.startswith("gloo:")}
        assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (rank, 2)
        owner = trace["muster"]
        assert (owner["job"], owner["rank"], owner["attempt"]) == ("learn", rank, 4)
        assert (owner["start_step"], owner["end_step"]) == (3, 6)
        assert switches(ranks.run_dir, rank) == {"trace_start_s": [2], "trace_write_s": [6]}


def test_a_checkpoint_within_the_traced_steps_is_named_with_its_time(start: Starter, text: Path) -> None:
    ranks = start(
        1, *TINY, "--data", str(text), "--steps", "8", "--checkpoint_every", "4",
        environ={"MUSTER_TRACE_STEPS": "3:6"},
    )  # fmt: skip
    assert ranks.end() == [EXIT_OK]
    account = analyse_run(read_run_folder(ranks.run_dir)).account
    assert account is not None
    saving = [
        part.places for row in (*account.ranks, *account.longer) for part in row.parts if part.use is Use.CHECKPOINT
    ]
    assert saving
    assert sum(ms for places in saving for place, ms in places if place == "checkpoint") > 1


def test_traces_are_repeated_every_so_many_steps(start: Starter, text: Path) -> None:
    ranks = start(
        1, *TINY, "--data", str(text), "--steps", "9",
        environ={"MUSTER_TRACE_STEPS": "2:4", "MUSTER_TRACE_EVERY": "3"},
    )  # fmt: skip
    assert ranks.end() == [EXIT_OK]
    for first, end in ((2, 4), (5, 7), (8, 10)):
        file = ranks.run_dir / "traces" / "spool" / f"rank-0.attempt-0.steps-{first}-{end}.json"
        names = {
            event["name"] for event in json.loads(file.read_text())["traceEvents"] if "ProfilerStep#" in event["name"]
        }
        assert names == {f"ProfilerStep#{first}", f"ProfilerStep#{first + 1}"}
    assert "and again every 3 steps" in events(ranks.run_dir, "trace_planned")[0]["message"]


@pytest.mark.parametrize(
    ("schedule", "ideal"), [("GPipe", 1 / 9), ("1F1B", 1 / 9), ("Interleaved1F1B", 1 / 17)], ids=str
)
def test_the_report_has_the_measured_bubble_of_a_pipeline_beside_that_of_its_schedule(
    start: Starter, text: Path, schedule: str, ideal: float
) -> None:
    mesh = ("--parallel", "pp=2", "--pipeline_schedule", schedule, "--micro_batch", "1")
    ranks = start(2, *TINY, *mesh, "--data", str(text), "--steps", "5", "--trace_steps", "3:6")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    found = analyse_run(read_run_folder(ranks.run_dir)).pipeline
    assert found is not None
    heartbeats = [json.loads((ranks.run_dir / "heartbeats" / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [heartbeat["stage"] for heartbeat in heartbeats] == [
        0,
        1,
    ]  # of which `--ranks stage-leaders` takes the first
    assert (found.schedule, found.ranks, found.micro_batches) == (schedule, 2, 8)
    assert found.ideal == pytest.approx(ideal, abs=1e-4)
    # A stage waits at least while the first micro-batch is in the other one, however slow the host is.
    assert 0 < found.bubble < 1


def switches(run_dir: Path, rank: int) -> dict[str, list[int]]:
    """The steps before which a rank started its profiler and wrote its trace, with the seconds in its metrics."""
    lines = metrics(run_dir, rank)
    return {
        name: [line["step"] for line in lines if line[name] is not None and line[name] > 0]
        for name in ("trace_start_s", "trace_write_s")
    }


def test_only_configured_ranks_and_existing_steps_are_traced(start: Starter, text: Path) -> None:
    run = (*TINY, "--data", str(text), "--steps", "4")
    some = start(2, *run, "--trace_steps", "1:99", "--trace_ranks", "1")
    assert some.end() == [EXIT_OK] * 2
    (trace,) = (some.run_dir / "traces" / "spool").iterdir()
    assert trace.name == "rank-1.attempt-0.steps-1-5.json"


def test_configured_steps_after_the_last_one_are_reported_as_missed(start: Starter, text: Path) -> None:
    ranks = start(1, *TINY, "--data", str(text), "--steps", "2", environ={"MUSTER_TRACE_STEPS": "20:25"})
    assert ranks.end() == [EXIT_OK]
    (missed,) = events(ranks.run_dir, "trace_missed")
    assert missed["message"] == "no trace of steps 20:25: the run ends with step 2"
    assert ranks.log_text().count("no trace of steps 20:25") == 1


def test_configured_steps_after_a_stop_are_reported_as_missed_for_any_ranks(start: Starter, text: Path) -> None:
    ranks = start(
        2, *TINY, "--data", str(text), "--steps", "100000", "--trace_steps", "90000:90002", "--trace_ranks", "1"
    )
    ranks.wait_until(lambda: ranks.steps_done() >= 2)
    ranks.send(signal.SIGTERM)
    assert ranks.end() == [EXIT_STOPPED] * 2
    assert [event["step"] for event in events(ranks.run_dir, "trace_planned")] == [90000]
    (missed,) = events(ranks.run_dir, "trace_missed")
    assert missed["message"] == f"no trace of steps 90000:90002: this attempt ended after step {missed['step']}"
