"""A job that has been pending for a while has an Event with the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.operator.api_server import OperatorHarness, Server, serve

from muster.kube.async_client import AsyncKubeClient


class Waiting:
    """A job whose reason the test writes, with a fake clock."""

    def __init__(self, api: AsyncKubeClient) -> None:
        self.now = 0.0
        self.harness = OperatorHarness(api)
        self.pending = self.harness.events
        self.pending.clock = lambda: self.now
        self.harness.submit("llama", 5, queue="missing")

    def write(self, reason: str, phase: str = "Pending") -> None:
        """The job gets another status."""
        known = self.harness.cache.jobs.get("uid-llama")
        assert known is not None
        before = known.job.status
        status = before.model_copy(update={"phase": phase, "reason": reason})
        self.harness.cache.jobs.on_status_written(
            "uid-llama", status, int(known.job.metadata.resource_version or 0) + 1
        )
        self.pending.on_status_written("uid-llama", before, status)

    def events(self, at: float) -> list[str]:
        """Messages of the Events that exist after a cycle at time `at`."""
        self.now = at
        self.pending.record_pending_reasons()
        return [one.manifest["note"] for one in self.harness.recorder.pending()]


def run_scenario(scenario: Callable[[Waiting], Awaitable[None]]) -> None:
    async def waiting(api: AsyncKubeClient) -> None:
        await scenario(Waiting(api))

    serve(Server(), waiting)


def test_a_job_pending_for_half_a_minute_has_one_event_with_the_reason() -> None:
    async def scenario(waiting: Waiting) -> None:
        harness = waiting.harness
        assert waiting.pending.due_in_s() == float("inf")
        assert 0.0 < await harness.run_cycle() <= 30.0, "the next round is no later than the Event"
        assert harness.phase("llama") == "Pending"
        waiting.now = 29.0
        await harness.run_cycle()
        assert harness.pending_events() == []
        waiting.now = 30.0
        await harness.run_cycle()
        assert harness.pending_events() == [("llama", "Pending")]
        assert harness.recorder.pending()[0].manifest["note"].startswith("QueueNotFound: ")
        waiting.now = 90.0
        await harness.run_cycle()
        assert len(harness.pending_events()) == 1

    run_scenario(scenario)


def test_a_reason_that_returns_counts_from_its_return() -> None:
    async def scenario(waiting: Waiting) -> None:
        for at, reason in ((0.0, "A"), (10.0, "B"), (20.0, "A")):
            waiting.now = at
            waiting.write(reason)
        assert waiting.events(at=30.0) == []
        assert waiting.events(at=49.0) == []
        assert waiting.pending.due_in_s() == 1.0
        (note,) = waiting.events(at=50.0)
        assert note.startswith("A: ")

    run_scenario(scenario)


def test_a_job_admitted_earlier_has_no_such_event() -> None:
    async def scenario(waiting: Waiting) -> None:
        waiting.write("A")
        waiting.write("Admitted", phase="Admitted")
        assert waiting.pending.due_in_s() == float("inf")
        assert waiting.events(at=60.0) == []

    run_scenario(scenario)


def test_a_reason_that_was_written_in_an_earlier_term_has_no_event_in_a_later_one() -> None:
    async def scenario(waiting: Waiting) -> None:
        waiting.write("A")
        waiting.pending.begin_term()
        assert waiting.events(at=60.0) == []

    run_scenario(scenario)
