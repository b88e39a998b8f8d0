"""Each second of a job is divided by what launcher and trainer recorded; what they did not record is unknown."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from muster.api.spec import ObjectMeta, RunTimeStatus, TimeSpentStatus, TrainingJobStatus
from muster.cluster import RunTime
from muster.usage.goodput import (
    Launch,
    RunRecords,
    account_of_steps,
    by_main_cause,
    divide,
    goodput,
    job_time,
    next_runs,
)
from muster.usage.goodput_text import goodput_sentence
from muster.usage.run_account import RecordedStep


def account(
    spent: dict[str, int],
    launches: list[Launch],
    run: list[RecordedStep],
    now: float,
    stopped: frozenset[int] = frozenset(),
) -> dict[str, int]:
    """The account of a job whose records are all in one folder."""
    found = divide(RunRecords(launches, account_of_steps(run), stopped), now)
    return goodput(spent, () if found is None else (found,), now)


def steps(attempt: int, numbers: range, start: float, each_s: float = 2.0, **waits: float) -> list[RecordedStep]:
    """Steps one after the other; each waits."""
    found, at = [], start
    for number in numbers:
        at += each_s + sum(waits.values())
        found.append(RecordedStep(attempt, number, at, each_s, **waits))
    return found


def test_start_steps_saves_traces_and_the_end_have_causes_of_their_own() -> None:
    compiled = RecordedStep(0, 1, 1040.0, 30.0)
    later = steps(0, range(2, 102), 1040.0, checkpoint_s=0.1, tracing_s=0.4)
    launches = [Launch(0, 1000.0, "start"), Launch(0, later[-1].at + 3.0, "end")]
    running = round((later[-1].at + 3.0 - 1000.0) * 1000)
    spent = {"waiting/QuotaExceeded": 60_000, "start": 5_000, "running": running + 4_000}
    found = account(spent, launches, [compiled, *later], 9999.0)
    assert found == {
        "waiting/QuotaExceeded": 60_000,
        "start": 5_000 + 38_000,
        "productive": 202_000,
        "checkpoint": 10_000,
        "tracing": 40_000,
        "stopping": 3_000,
        "unknown": 4_000,
    }
    assert sum(found.values()) == sum(spent.values())
    assert next(iter(by_main_cause(found))) == "waiting"


def test_steps_that_a_later_attempt_did_again_are_lost_and_its_start_is_recovery() -> None:
    first = steps(0, range(1, 31), 1000.0)
    second = steps(1, range(21, 41), 1120.0)
    launches = [Launch(0, 990.0, "start"), Launch(0, 1063.0, "failure"), Launch(0, 1065.0, "end")]
    launches += [Launch(1, 1100.0, "start"), Launch(1, 1161.0, "end")]
    found = account({"running": 136_000, "recovery": 35_000}, launches, first + second, 9999.0)
    assert found == {
        "start": 10_000,
        "productive": 40_000 + 40_000,
        "lost": 20_000,
        "unknown": 3_000,  # from its last step to the failure
        "recovery": 35_000 + 2_000 + 20_000,
        "stopping": 1_000,
    }


def test_after_sigkill_of_the_launcher_the_gap_is_unknown_and_no_other_cause_grows() -> None:
    first, second = steps(0, range(1, 11), 1000.0), steps(1, range(11, 21), 1100.0)
    launches = [Launch(0, 1000.0, "start"), Launch(1, 1100.0, "start"), Launch(1, 1120.0, "end")]
    found = account({"running": 47_000}, launches, first + second, 9999.0)
    assert found == {"productive": 40_000, "unknown": 7_000}


def test_a_step_above_the_median_is_slow_and_a_gap_between_steps_is_unknown() -> None:
    usual = steps(0, range(1, 11), 1000.0)
    slow = RecordedStep(0, 11, usual[-1].at + 7.0, 7.0)
    late = RecordedStep(0, 12, slow.at + 12.0, 2.0)
    launches = [Launch(0, 1000.0, "start")]
    found = account({"running": 39_500}, launches, [*usual, slow, late], late.at + 0.5)
    assert found == {"productive": 24_500, "slow": 5_000, "unknown": 10_000}


def test_steps_between_two_reports_count_although_they_are_not_recorded() -> None:
    """As `muster.report` does, which writes at most a line a second."""
    reported = [RecordedStep(0, step, 1000.0 + step * 0.1, 0.1) for step in range(1, 302, 10)]
    stalled = RecordedStep(0, 311, reported[-1].at + 9.0, 0.1)
    slower = RecordedStep(0, 321, stalled.at + 1.5, 0.1)
    run = [*reported, stalled, slower]
    found = account({"running": 40_600}, [Launch(0, 1000.0, "start")], run, slower.at)
    assert found == {"productive": 32_100, "slow": 500, "unknown": 8_000}


def test_of_the_steps_between_two_reports_those_that_were_done_again_are_lost() -> None:
    first = [RecordedStep(0, step, 1000.0 + step, 1.0) for step in (1, 11, 21, 31)]
    second = [RecordedStep(1, step, 1100.0 + step - 25, 1.0) for step in (26, 36)]
    launches = [Launch(0, 1000.0, "start"), Launch(0, 1031.0, "end"), Launch(1, 1100.0, "start")]
    launches += [Launch(1, 1111.0, "end")]
    found = account({"running": 42_000}, launches, first + second, 9999.0)
    assert found == {"productive": 25_000 + 11_000, "lost": 6_000}


@pytest.mark.parametrize("cause", ["stopping", "waiting/Suspended"])
def test_what_a_stopped_attempt_did_in_its_grace_period_counts_once(cause: str) -> None:
    """The status counts the seconds from 1025 to 1033 as stopping; the attempt steps until 1030, saves until 1033."""
    first, second = steps(0, range(1, 11), 1010.0), steps(1, range(11, 21), 1110.0)
    launches = [Launch(0, 1000.0, "start"), Launch(0, 1033.0, "end"), Launch(1, 1100.0, "start")]
    launches += [Launch(1, 1130.0, "end")]
    spent = {"running": 25_000 + 30_000, cause: 8_000, "waiting/Preempted": 50_000}
    found = account(spent, launches, first + second, 9999.0)
    assert found == {"waiting/Preempted": 50_000, "start": 20_000, "productive": 40_000, "stopping": 3_000}


def test_an_attempt_that_was_suspended_and_did_not_fail_begins_with_a_start() -> None:
    first, second = steps(0, range(1, 11), 1010.0), steps(1, range(11, 21), 1110.0)
    launches = [Launch(0, 1000.0, "start"), Launch(0, 1030.0, "end"), Launch(1, 1100.0, "start")]
    found = account({"running": 60_000}, launches, first + second, 1130.0)
    assert found == {"start": 20_000, "productive": 40_000}


def test_launchers_that_start_before_pods_are_ready_do_not_count_twice() -> None:
    run = steps(0, range(1, 11), 1010.0)
    launches = [Launch(0, 1000.0, "start"), Launch(0, 1030.0, "end")]
    assert account({"start": 8_000, "running": 22_000}, launches, run, 9999.0) == {
        "start": 10_000,
        "productive": 20_000,
    }


@pytest.mark.parametrize("launches", [[], [Launch(0, 0.0, "start")]])
def test_without_records_of_steps_the_time_of_pods_is_not_divided(launches: list[Launch]) -> None:
    assert account({"start": 1, "running": 5}, launches, [], 9.0) == {"start": 1, "running": 5}


def test_whatever_the_records_say_the_parts_sum_to_the_time_since_the_submission() -> None:
    chosen = random.Random(3)
    for _ in range(300):
        run: list[RecordedStep] = []
        launches: list[Launch] = []
        at, step = 1000.0, 0
        for attempt in range(chosen.randrange(1, 4)):
            launches.append(Launch(attempt, at, "start"))
            step = max(0, step - chosen.randrange(0, 5))
            for _ in range(chosen.randrange(0, 12)):
                step, at = step + 1, at + chosen.choice([0.5, 1.0, 1.0, 20.0])
                run.append(RecordedStep(attempt, step, at, chosen.random(), chosen.random(), chosen.random()))
            at += chosen.random() * 9
            if chosen.random() < 0.5:
                launches.append(Launch(attempt, at, chosen.choice(["end", "failure"])))
        stopped = frozenset(chosen.sample(range(4), 2))
        spent = {"waiting/Suspended": 5, "start": 7_000, "running": round((at - 1000) * 1000) + chosen.randrange(9_000)}
        found = account(spent, launches, run, at, stopped)
        assert sum(found.values()) == sum(spent.values())
        assert all(amount > 0 for amount in found.values())


def account_of_status(runs: list[RunTimeStatus], now: float, **fields: object) -> dict[str, int]:
    spent = {"waiting/QuotaExceeded": 10_000, "start": 5_000, "running": 20_000}
    recorded = TimeSpentStatus.model_validate({"cause": "running", "since": 1000.0, "milliseconds": spent, **fields})
    status = TrainingJobStatus(time_spent=recorded.model_copy(update={"runs": runs}))
    metadata = ObjectMeta(name="a", namespace="default", creation_timestamp=0.0)
    found = job_time(SimpleJob(metadata, status), now)
    assert sum(found.values()) == 35_000 + (round((now - 1000.0) * 1000) if recorded.cause else 0)
    return found


@dataclass
class SimpleJob:
    metadata: ObjectMeta
    status: TrainingJobStatus


def test_what_ran_since_the_status_was_written_is_not_divided_yet_and_what_ran_before_unrecorded_is_unknown() -> None:
    runs = [RunTimeStatus(attempt=0, last_step=9, at=1060.0, milliseconds={"start": 8_000, "productive": 60_000})]
    assert account_of_status(runs, 1100.0) == {
        "waiting/QuotaExceeded": 10_000,
        "start": 13_000,
        "productive": 60_000,
        "running": 40_000,
        "unknown": 12_000,
    }
    assert account_of_status([], 1100.0)["running"] == 120_000
    ended = account_of_status([runs[0].model_copy(update={"milliseconds": {"productive": 18_000}})], 1.0, cause="")
    assert ended == {"waiting/QuotaExceeded": 10_000, "start": 5_000, "productive": 18_000, "unknown": 2_000}


def test_many_attempts_with_folders_of_their_own_are_added_up() -> None:
    runs: tuple[RunTime, ...] = ()
    for attempt in range(40):
        runs = next_runs(runs, RunTime(attempt, 10 * attempt + 1, 10 * attempt + 10, float(attempt), {"slow": 1000}))
    assert len(runs) == 16
    assert sum(run.milliseconds["slow"] for run in runs) == 40_000
    assert next_runs(runs, RunTime(3, 1, 5, 2.0, {"slow": 1})) == runs, "an older answer changes nothing"


def test_a_time_of_which_nothing_is_known_has_no_sentence() -> None:
    assert goodput_sentence({"unknown": 30_000}, 0) == ""
    assert goodput_sentence({"unknown": 30_000, "productive": 30_000}, 0) == "of 1m00s 50% productive, 50% unknown"
