"""Which log of a replica is meant, and when no more of it will come."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.errors import NotFound
from muster.local.run_folder import check_attempt, check_replica, is_complete, newest_attempt, newest_log_attempts


def job(attempt: int, phase: str) -> spec.TrainingJob:
    status = spec.TrainingJobStatus.model_validate({"attempt": attempt, "phase": phase})
    return shell_job("a", "true").model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("attempt", "phase", "pods", "over"),
    [
        (0, "Running", [], False),  # asked for before it begins
        (1, "Admitted", [], False),  # its pod is not made yet
        (1, "Running", ["Running"], False),
        (1, "Running", ["Succeeded"], True),
        (1, "Running", ["Lost"], True),
        (2, "Running", ["Running"], False),  # a newer attempt waits for this one to stop
        (2, "Pending", ["Failed"], True),
        (2, "Pending", [], True),
        (1, "Failed", ["Running"], False),  # it still writes down what it has
        (1, "Failed", [], True),
    ],
)
def test_more_may_come_until_the_pod_of_the_attempt_has_ended(
    attempt: int, phase: str, pods: list[str], over: bool
) -> None:
    assert is_complete(job(attempt, phase), [{"phase": one} for one in pods], 1) is over


@pytest.mark.parametrize(
    ("phase", "follow", "logs", "newest"),
    [("Running", False, [0, 10, 9], 10), ("Running", True, [0, 1], 12), ("Failed", True, [0, 1], 1),
     ("Running", False, [], 12), ("Running", True, [13], 13)],
)  # fmt: skip
def test_who_follows_a_job_that_goes_on_reads_its_present_attempt(
    tmp_path: Path, phase: str, follow: bool, logs: list[int], newest: int
) -> None:
    (tmp_path / "logs").mkdir()
    for number in logs:
        (tmp_path / "logs" / f"trainer-0.attempt-{number}.log").touch()
    (tmp_path / "logs" / "trainer-1.attempt-99.log").touch()
    assert newest_attempt(tmp_path, job(12, phase), "trainer", 0, follow) == newest


def test_the_newest_log_of_every_replica_is_found_whatever_its_role_is_called(tmp_path: Path) -> None:
    for name in ("trainer-0.attempt-9", "trainer-0.attempt-10", "trainer-1.attempt-0", "data-reader-12.attempt-3", "x"):
        (tmp_path / f"{name}.log").touch()
    assert newest_log_attempts(tmp_path) == {("trainer", 0): 10, ("trainer", 1): 0, ("data-reader", 12): 3}
    assert newest_log_attempts(tmp_path / "missing") == {}


def test_a_replica_that_was_scaled_away_can_be_read_in_the_attempts_that_had_it(tmp_path: Path) -> None:
    for name in ("trainer-1.attempt-0.log", "reader-0.attempt-0.log"):
        (tmp_path / name).touch()
    here = job(1, "Running")  # one trainer
    check_replica(here, "trainer", 0, tmp_path, 7)
    check_replica(here, "trainer", 1, tmp_path, 0)
    check_replica(here, "reader", 0, tmp_path, 0)
    for role, index, attempt in (("trainer", 1, None), ("trainer", 1, 1), ("trainer", -1, 0), ("reader", 0, 1)):
        with pytest.raises(NotFound, match=r"it has trainer|index: must be 0 to 0"):
            check_replica(here, role, index, tmp_path, attempt)


@pytest.mark.parametrize(
    ("newest", "told"),
    [(0, "attempt: must be 0 for job 'a'; got 4"), (3, "attempt: must be 0 to 3 for job 'a'; got 4")],
)
def test_an_attempt_that_has_not_begun_is_refused_and_those_that_there_are_named(newest: int, told: str) -> None:
    check_attempt(job(newest, "Running"), newest)
    with pytest.raises(NotFound, match=f"^{told}$"):
        check_attempt(job(newest, "Running"), 4)
