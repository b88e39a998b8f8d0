"""Deferrable writes wait until a burst of new jobs is over, but not for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.operator.api_server import OperatorHarness, Server, serve

from muster.api.spec import TrainingJobStatus
from muster.cluster import ObjectWrites, WriteStatus
from muster.kube.async_client import AsyncKubeClient
from muster_operator.writes.queue import WriteResult
from muster_operator.writes.throttle import WriteThrottle


def part(uid: str, version: str = "1") -> ObjectWrites:
    return ObjectWrites(uid, (WriteStatus(uid, TrainingJobStatus(), version),))


def play(scenario: Callable[[OperatorHarness], Awaitable[None]]) -> None:
    async def with_harness(api: AsyncKubeClient) -> None:
        await scenario(OperatorHarness(api))

    serve(Server(), with_harness)


async def acknowledge(item: ObjectWrites, result: WriteResult) -> bool:
    return True


def test_the_oldest_are_taken_first_and_only_once() -> None:
    async def scenario(harness: OperatorHarness) -> None:
        queue = harness.queue
        await queue.write_cycle([], (part("a"), part("b"), part("c")), 60.0, acknowledge)
        queue.throttle.take_budget = lambda limit: min(2, limit)  # type: ignore[method-assign]
        assert queue.next_deferred() == (part("a"), part("b"))
        assert queue.next_deferred() == (part("c"),)
        assert queue.next_deferred() == ()

    play(scenario)


def test_a_newer_write_of_a_job_replaces_the_queued_one() -> None:
    async def scenario(harness: OperatorHarness) -> None:
        queue = harness.queue
        await queue.write_cycle([], (part("a", "1"), part("b")), 60.0, acknowledge)
        await queue.write_cycle([], (part("a", "2"),), 60.0, acknowledge)
        assert queue.next_deferred() == (part("b"), part("a", "2"))

    play(scenario)


def test_a_job_that_is_written_in_a_cycle_has_no_deferred_write() -> None:
    async def scenario(harness: OperatorHarness) -> None:
        queue = harness.queue
        await queue.write_cycle([], (part("a"), part("b")), 60.0, acknowledge)
        await queue.write_cycle([(part("a", "2"),)], (), 60.0, acknowledge)
        assert queue.next_deferred() == (part("b"),)
        assert not queue.has_deferred()

    play(scenario)


class Queue:
    """Urgent work; `served` counts what is done."""

    def __init__(self) -> None:
        self.now, self.waits, self.served = 0.0, True, 0
        self.throttle = WriteThrottle(lambda: self.waits, lambda: self.served, lambda: self.now)

    def at(self, now: float, served: int) -> bool:
        self.now, self.served = now, served
        return self.throttle.is_active()


def test_a_burst_lasts_while_urgent_work_makes_progress() -> None:
    queue = Queue()
    assert [queue.at(float(second), second) for second in range(5)] == [True] * 5
    queue.waits = False
    assert not queue.at(5.0, 6)


def test_in_a_burst_deferrable_writes_wait_a_minute_and_then_get_a_tenth_of_all_writes() -> None:
    queue = Queue()
    for second in range(61):
        assert queue.at(float(second), second)
        assert queue.throttle.blocks_deferred_writes() == (second < 60)
        queue.throttle.record_writes(1000)
        if second < 60:
            assert queue.throttle.take_budget(5) == 0
    assert queue.throttle.take_budget(1000) == 100 + 10, "of one second's thousand, and ten for the second"
    queue.throttle.record_writes(25)
    assert [queue.throttle.take_budget(64) for _ in range(2)] == [2, 0]
    queue.waits = False
    assert not queue.at(81.0, 81)
    assert queue.throttle.take_budget(64) == 64, "it is over"
    queue.waits = True
    assert queue.at(82.0, 81)
    assert queue.throttle.blocks_deferred_writes()
    assert queue.throttle.take_budget(64) == 0


def test_in_a_long_burst_ten_deferrable_writes_a_second_are_made_without_others() -> None:
    """All pods are created, and kube-scheduler binds them slowly."""
    queue = Queue()
    written = 0
    for second in range(200):
        assert queue.at(float(second), second)
        written += queue.throttle.take_budget(64)
    assert 1350 <= written <= 1400


def test_urgent_work_without_progress_is_no_burst() -> None:
    queue = Queue()
    assert [queue.at(second, 7) for second in (0.0, 1.5, 2.0, 9.0)] == [True, True, False, False]
    assert queue.at(10.0, 8)
