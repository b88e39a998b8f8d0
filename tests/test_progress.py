"""How far a job is, and when that is worth a line."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.heartbeats.progress import (
    STARTUP_REPEAT_S,
    ProgressLines,
    current_heartbeat,
    final_heartbeat,
    leading_heartbeat,
    progress_line,
    startup_message,
)


def heartbeat(step: int, **fields: Any) -> dict[str, Any]:
    return {"rank": 0, "attempt": 0, "step": step, "steps": 60, "loss": 4.0, "phase": "train", "at": 0.0, **fields}


def compiling(**fields: Any) -> dict[str, Any]:
    return heartbeat(0, loss=None, phase="compile", **fields)


def test_another_phase_is_reported_at_once_and_another_step_only_so_often() -> None:
    lines = ProgressLines(10.0)
    seen = [
        (0.0, heartbeat(0, loss=None, phase="setup")),
        (0.5, compiling(at=0.5)),
        (3.0, heartbeat(1)),
        (9.0, heartbeat(2)),
        (10.5, heartbeat(3)),
        (20.0, heartbeat(3)),
        (20.5, heartbeat(4)),
    ]
    message = [(at, line.partition(";")[0]) for at, now in seen if (line := lines.next_line(now, at)) is not None]
    assert message == [
        (0.0, "setting up"),
        (0.5, "compiling"),
        (10.5, "step 3/60  loss 4"),
        (20.5, "step 4/60  loss 4"),
    ]


def test_the_last_step_of_a_job_that_is_over_need_not_wait() -> None:
    lines = ProgressLines(10.0)
    assert lines.next_line(heartbeat(59), 0.0) is not None
    assert lines.next_line(heartbeat(60), 1.0) is None
    assert lines.next_line(heartbeat(60), 1.0, finished=True) == "step 60/60  loss 4"


def test_without_heartbeat_there_is_no_progress_line() -> None:
    assert ProgressLines(10.0).next_line(None, 0.0) is None
    assert ProgressLines(10.0).next_line({"rank": 0, "attempt": 0}, 0.0) is None


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_a_compilation_is_reported_at_most_every_30_s_however_often_one_looks(waits_s: list[float]) -> None:
    lines, now, message = ProgressLines(5.0), 0.0, []
    for wait_s in waits_s:
        now += wait_s
        if lines.next_line(compiling(), now) is not None:
            message.append(now)
    assert len(message) >= 1
    assert all(later - sooner >= STARTUP_REPEAT_S for sooner, later in itertools.pairwise(message))


@pytest.mark.parametrize(
    ("since_s", "message"),
    [
        (0.4, "compiling; the first time this can take a minute or more"),
        (75.0, "compiling for 1m15s; the first time this can take a minute or more"),
    ],
)
def test_a_compilation_shows_its_duration_from_1_s_on(since_s: float, message: str) -> None:
    assert startup_message(compiling(), since_s) == message


def test_what_is_unknown_is_left_out_of_the_figures() -> None:
    assert progress_line(heartbeat(30, tokens_per_s=12_300.0, mfu=0.412, eta_s=70.0)) == (
        "step 30/60  loss 4  12.3k tokens/s  MFU 41.2%  ETA 1m10s"
    )
    assert progress_line({"step": 3}) == "step 3"


def test_the_lowest_rank_of_the_newest_attempt_speaks_for_the_job() -> None:
    heartbeats = [heartbeat(9, rank=1, attempt=1), heartbeat(8, rank=0, attempt=1), heartbeat(50, rank=0, attempt=0)]
    assert leading_heartbeat(heartbeats) == heartbeats[1]
    assert current_heartbeat(heartbeats, attempt=1) == heartbeats[1]
    assert current_heartbeat(heartbeats, attempt=2) is None
    assert leading_heartbeat([]) is None


@pytest.mark.parametrize("phase", ["setup", "compile", "checkpoint", "train"])
def test_a_job_that_runs_no_more_has_neither_a_phase_nor_a_time_to_its_end(phase: str) -> None:
    last = final_heartbeat(
        heartbeat(22, phase=phase, eta_s=1e5, step_time_s=2.0, loss=None if phase == "compile" else 4.0)
    )
    assert progress_line(last) == ("step 22/60" if phase == "compile" else "step 22/60  loss 4")
    assert startup_message(last, 100.0) == ""
