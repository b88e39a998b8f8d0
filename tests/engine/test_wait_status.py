"""How often the status of a waiting job is refreshed."""

from __future__ import annotations

from math import inf

import pytest
from tests.engine.objects import job

from muster.api.spec import QueueingStatus
from muster.engine.status_writes import WaitStatusThrottle
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.model import Wait
from muster.state import JobEntry


def line(count: int, shift: int = 0) -> list[Wait]:
    return [Wait(f"job{number}", "InsufficientResources", "needs 1 GPU", number + 1 + shift) for number in range(count)]


def written(every_s: float, count: int, seconds: int) -> dict[str, list[int]]:
    """When each job was written, of so many whose positions change every second."""
    throttle, statuses = (
        WaitStatusThrottle(every_s),
        dict.fromkeys((wait.gang_uid for wait in line(count)), QueueingStatus()),
    )
    entries = {uid: JobEntry(TrainingJobWorkload(job(uid))) for uid in statuses}
    at: dict[str, list[int]] = {uid: [] for uid in statuses}
    for second in range(seconds):
        waits = line(count, second % 2)
        throttle.begin_cycle(waits)
        for wait in waits:
            new, _ = throttle.update(entries[wait.gang_uid], wait, statuses[wait.gang_uid], float(second), force=False)
            if new is not statuses[wait.gang_uid]:
                statuses[wait.gang_uid] = new
                at[wait.gang_uid].append(second)
    return at


def test_positions_are_refreshed_once_a_minute() -> None:
    at = written(60.0, 98, 200)
    assert set(map(tuple, at.values())) == {(0, 61, 122, 183)}, "a minute later its position was the recorded one"


def test_of_thousands_each_is_refreshed_in_its_turn_ten_a_second() -> None:
    entry = JobEntry(TrainingJobWorkload(job("a")))
    throttle = WaitStatusThrottle(60.0)
    waits = [
        Wait(f"job{queue}-{number}", "InsufficientResources", "", number + 1)
        for queue in range(20)
        for number in range(90)
    ]
    throttle.begin_cycle(waits)
    status = QueueingStatus()
    before, _ = throttle.update(entry, waits[0], status, 0.0, force=False)
    moved = Wait(waits[0].gang_uid, "InsufficientResources", "", 2)
    assert throttle.update(entry, moved, before, 179.0, force=False) == (before, 180.0)
    again, due = throttle.update(entry, moved, before, 180.0, force=False)
    assert (again.queue_position, due) == (2, None)


def test_a_new_reason_is_written_at_once_however_many_gangs_wait() -> None:
    entry = JobEntry(TrainingJobWorkload(job("a")))
    throttle = WaitStatusThrottle(60.0)
    waits = line(90) * 40
    throttle.begin_cycle(waits)
    before, _ = throttle.update(entry, waits[0], QueueingStatus(), 0.0, force=False)
    other = Wait(waits[0].gang_uid, "QuotaExceeded", "", 1)
    assert throttle.update(entry, other, before, 1.0, force=False)[0].reason == "QuotaExceeded"


@pytest.mark.parametrize("every_s", [60.0, inf])
def test_a_simulation_gets_each_wait_status_once(every_s: float) -> None:
    entry = JobEntry(TrainingJobWorkload(job("a")))
    throttle = WaitStatusThrottle(every_s)
    throttle.begin_cycle(line(3))
    before, _ = throttle.update(entry, line(3)[0], QueueingStatus(), 0.0, force=False)
    again, due = throttle.update(entry, line(3, 5)[0], before, 1e9, force=False)
    assert (again is before, due) == (every_s == inf, None)
