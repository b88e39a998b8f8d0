"""Which log of a replica is meant, and when no more of it will come."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.local.replica_log import is_over, newest_attempt


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
    assert is_over(job(attempt, phase), [{"phase": one} for one in pods], 1) is over


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
