"""The interval of `--checkpoint_every auto` against simulated failures, and from measured costs."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from muster_components.trainer.checkpoint_interval import (
    FIRST_STEPS,
    MAX_S,
    PRIOR_DEVICE_S,
    FailureHistory,
    SaveSchedule,
    best_interval_s,
    read_history,
)


@pytest.mark.parametrize(("cost_s", "between_s"), [(0.05, 3600), (10, 3600), (60, 1800)])
def test_no_other_interval_loses_less_time_to_saves_and_failures(cost_s: float, between_s: float) -> None:
    best_s = best_interval_s(cost_s, between_s)
    wasted = {factor: expected_s(best_s * factor, cost_s, between_s) for factor in (0.5, 0.8, 1.0, 1.25, 2.0)}
    assert min(wasted, key=lambda factor: wasted[factor]) == 1.0, wasted


def expected_s(interval_s: float, cost_s: float, between_s: float) -> float:
    """Time per second of progress with exponential failures, without restart time (Daly 2006, equation 20)."""
    return between_s * (math.exp((interval_s + cost_s) / between_s) - 1) / interval_s


def test_where_a_save_costs_more_than_the_time_between_failures_the_interval_is_that_time() -> None:
    assert best_interval_s(100, 40) == 40


def test_failures_are_attempts_that_were_not_asked_to_stop(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    lines = [
        {"attempt": 0, "at": 100.0, "kind": "checkpoint_saved"},
        {"attempt": 0, "at": 160.0, "kind": "checkpoint_saved"},
        {"attempt": 1, "at": 200.0, "kind": "resumed"},
        {"attempt": 1, "at": 230.0, "kind": "stopping"},
        {"attempt": 2, "at": 300.0, "kind": "resumed"},
    ]
    events.write_text("".join(json.dumps(line) + "\n" for line in lines) + 'null\n{"at": "x"}\nbroken')
    assert read_history(events, 2) == FailureHistory(failures=1, trained_s=90.0)
    assert read_history(tmp_path / "none", 2) == FailureHistory()


def test_more_failures_and_more_ranks_shorten_the_time_between_failures() -> None:
    assert FailureHistory().mean_time_between_s(8, 0) == PRIOR_DEVICE_S / 8
    assert FailureHistory(3, 3600).mean_time_between_s(8, 400) == (PRIOR_DEVICE_S / 8 + 4000) / 4


def test_auto_saves_early_once_and_then_by_the_measured_cost() -> None:
    reports: list[str] = []
    failures = FailureHistory(9999, 3600)
    schedule = SaveSchedule(None, 100, 2, failures, agree=lambda mine: mine, report=reports.append)
    assert next(step for step in range(100, 112) if schedule.is_due(step)) == 100 + FIRST_STEPS
    schedule.saved(110, waited_s=0.5, median_s=2.0)
    between_s = (PRIOR_DEVICE_S / 2 + 3600) / 10_000
    steps = round(best_interval_s(0.5, between_s) / 2.0)
    due = next(step for step in range(111, 10_000) if schedule.is_due(step))
    assert due == 110 + steps
    (report,) = reports
    assert report == (
        f"a checkpoint every {steps:,} steps ({best_interval_s(0.5, between_s):,.1f} s): one costs 0.500 s, a failure "
        f"is expected every {between_s / 3600:,.1f} h (2 ranks, 9999 failures so far)"
    )
    schedule.step_ended(111, 3.5, 2.0)  # the copies slow the next step down: the save cost 2 s
    schedule.saved(due, waited_s=2.0, median_s=2.0)
    slower = next(step for step in range(due + 1, 10_000) if schedule.is_due(step)) - due
    assert slower == pytest.approx(2 * steps, rel=0.01)


def test_an_interval_is_half_an_hour_at_most() -> None:
    schedule = SaveSchedule(None, 0, 1, FailureHistory(), agree=lambda mine: mine, report=print)
    schedule.saved(10, waited_s=9.0, median_s=2.0)
    assert next(step for step in range(11, 10_000) if schedule.is_due(step)) == 10 + MAX_S / 2


def test_all_ranks_save_after_the_steps_that_rank_0_chooses() -> None:
    chosen = random.Random(1)
    agreed: list[int] = []

    def of_rank0(mine: int) -> int:
        agreed.append(mine)
        return agreed[0]

    zero = SaveSchedule(None, 0, 2, FailureHistory(), agree=of_rank0, report=print)
    other = SaveSchedule(None, 0, 2, FailureHistory(5, 9.0), agree=of_rank0, report=print)
    step = FIRST_STEPS
    for _ in range(5):
        agreed.clear()
        for schedule in (zero, other):
            schedule.saved(step, waited_s=chosen.random(), median_s=1 + chosen.random())
        step = next(later for later in range(step + 1, 1_000_000) if zero.is_due(later))
        assert other.is_due(step)
        assert not other.is_due(step - 1)


@pytest.mark.parametrize(("every", "due"), [(3, [3, 6, 9]), (0, [])])
def test_a_number_saves_after_each_multiple_of_it(every: int, due: list[int]) -> None:
    schedule = SaveSchedule(every, 0, 1, FailureHistory(), agree=lambda mine: mine, report=print)
    assert [step for step in range(1, 11) if schedule.is_due(step)] == due
