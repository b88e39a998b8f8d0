"""One sentence for each place a job can be in, and when it is news."""

from __future__ import annotations

import pytest
from tests.torchx.jobs import PLACE, ended, job, running

from muster.api.spec import TrainingJobStatus
from muster.follow import StatusReporter, change_key, status_message
from muster.model import Wait
from muster.workload import conditions, transitions

WAIT = Wait("u", "InsufficientResources", "needs 2 cores; 1 of 2 free", position=2, estimated_start=None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TrainingJobStatus(), "waits in queue research"),
        (
            transitions.set_waiting(TrainingJobStatus(), WAIT, 1.0),
            "waits in queue research, position 2: needs 2 cores; 1 of 2 free",
        ),
        (transitions.admit(TrainingJobStatus(), PLACE, 1.0), "admitted to n1, n2; its pods are starting"),
        (running(), "runs on n1, n2"),
        (transitions.restart(running(), "Restarting", "restart 1 of 3 in 5 s", 3.0, 5.0), "restart 1 of 3 in 5 s"),
        (transitions.suspend(running(), 3.0), "suspended; to resume it: muster resume a-1"),
        (transitions.finish(running(), conditions.COMPLETE, "Completed", "all 2 exited", 3.0), "all 2 exited"),
        (
            transitions.finish(running(), conditions.CANCELLED, "Cancelled", "cancelled by the user", 3.0),
            "stopping: cancelled by the user",
        ),
        (
            ended(transitions.finish(running(), conditions.CANCELLED, "Cancelled", "cancelled by the user", 3.0)),
            "cancelled by the user",
        ),
    ],
)
def test_the_status_message_of_each_phase(status: TrainingJobStatus, expected: str) -> None:
    assert status_message(job(status)) == expected


def test_a_new_estimate_is_no_news_but_a_new_place_is() -> None:
    def seen(position: int, start: float) -> tuple[object, ...] | None:
        result = Wait("u", "InsufficientResources", "no capacity", position=position, estimated_start=start)
        return change_key(job(transitions.set_waiting(TrainingJobStatus(), result, 1.0)))

    assert seen(2, 100.0) == seen(2, 200.0)
    assert seen(2, 100.0) != seen(1, 100.0)
    assert change_key(job(TrainingJobStatus())) is change_key(job(running())) is None


def test_an_unchanged_message_is_not_repeated() -> None:
    message = StatusReporter()
    waiting, starting = (
        job(transitions.set_waiting(TrainingJobStatus(), WAIT, 1.0)),
        job(transitions.admit(TrainingJobStatus(), PLACE, 1.0)),
    )
    has_message = [
        message.next_message("a-1", each) is not None for each in (waiting, waiting, starting, starting, waiting)
    ]
    assert has_message == [True, False, True, False, True]
    assert message.next_message("b-2", waiting) is not None
