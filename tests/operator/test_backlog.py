"""Deferrable writes wait until a burst of new jobs is over, but not for ever."""

from __future__ import annotations

from muster.cluster import ObjectWrites, WriteStatus
from muster.spec import TrainingJobStatus
from muster_operator.deferred_statuses import DeferredStatusQueue, WriteThrottle


def part(uid: str, version: str = "1") -> ObjectWrites:
    return ObjectWrites(uid, (WriteStatus(uid, TrainingJobStatus(), version),))


def test_the_oldest_are_taken_first_and_only_once() -> None:
    backlog = DeferredStatusQueue()
    backlog.add([part("a"), part("b"), part("c")])
    assert backlog.take(2) == (part("a"), part("b"))
    assert backlog.take(2) == (part("c"),)
    assert backlog.take(2) == ()


def test_a_newer_write_of_a_job_replaces_the_one_that_waits() -> None:
    backlog = DeferredStatusQueue()
    backlog.add([part("a", "1"), part("b")])
    backlog.add([part("a", "2")])
    assert backlog.take(9) == (part("b"), part("a", "2"))


def test_a_job_that_is_written_otherwise_has_nothing_to_be_written_later() -> None:
    backlog = DeferredStatusQueue()
    backlog.add([part("a"), part("b")])
    backlog.discard([part("a", "2")])
    assert len(backlog) == 1
    assert backlog.clear() == {"b"}
    assert len(backlog) == 0


class Queue:
    """Urgent work; `served` counts what is done."""

    def __init__(self) -> None:
        self.now, self.waits, self.served = 0.0, True, 0
        self.rush = WriteThrottle(lambda: self.waits, lambda: self.served, lambda: self.now)

    def at(self, now: float, served: int) -> bool:
        self.now, self.served = now, served
        return self.rush.is_active()


def test_a_rush_lasts_while_somebody_waits_and_others_are_served() -> None:
    queue = Queue()
    assert [queue.at(float(second), second) for second in range(5)] == [True] * 5
    queue.waits = False
    assert not queue.at(5.0, 6)


def test_in_a_rush_those_who_can_wait_get_nothing_for_a_minute_and_then_a_tenth_of_what_is_written() -> None:
    queue = Queue()
    for second in range(61):
        assert queue.at(float(second), second)
        assert queue.rush.blocks_deferred_writes() == (second < 60)
        queue.rush.record_writes(1000)
        if second < 60:
            assert queue.rush.take_budget(5) == 0
    assert queue.rush.take_budget(1000) == 100 + 10, "of one second's thousand, and ten for the second"
    queue.rush.record_writes(25)
    assert [queue.rush.take_budget(64) for _ in range(2)] == [2, 0]
    queue.waits = False
    assert not queue.at(81.0, 81)
    assert queue.rush.take_budget(64) == 64, "it is over"
    queue.waits = True
    assert queue.at(82.0, 81)
    assert queue.rush.blocks_deferred_writes()
    assert queue.rush.take_budget(64) == 0


def test_in_a_rush_that_lasts_ten_a_second_are_written_though_nothing_else_is() -> None:
    """All pods are created, and kube-scheduler binds them slowly."""
    queue = Queue()
    written = 0
    for second in range(200):
        assert queue.at(float(second), second)
        written += queue.rush.take_budget(64)
    assert 1350 <= written <= 1400


def test_who_waits_in_vain_makes_no_rush() -> None:
    queue = Queue()
    assert [queue.at(second, 7) for second in (0.0, 1.5, 2.0, 9.0)] == [True, True, False, False]
    assert queue.at(10.0, 8)
