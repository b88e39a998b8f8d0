"""A job that has waited for a while has an Event that says why."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.operator.serving import Rounds, Server, serve

from muster_operator.kube.api import Api


class Loop:
    """Timers that fire when the test says so, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, after_s: float, act: Any, *args: Any) -> None:
        self.due.append((self.now + after_s, act, args))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for at, act, args in due:
            if at <= self.now:
                act(*args)
            else:
                self.due.append((at, act, args))


def test_a_job_that_waits_for_half_a_minute_has_one_event_that_says_why() -> None:
    async def story(api: Api) -> None:
        rounds = Rounds(api)
        rounds.submit("llama", 5, queue="missing")
        events = rounds.writer.pending
        before = rounds.sight.jobs.known("uid-llama")
        assert before is not None
        await rounds.round()
        after = rounds.sight.jobs.known("uid-llama")
        assert after is not None
        assert (after.job.status.phase, after.job.status.reason) == ("Pending", "QueueNotFound")
        loop = Loop()
        rounds.writer.pending.loop = lambda: cast(asyncio.AbstractEventLoop, loop)
        events.wrote("uid-llama", before.job.status, after.job.status)
        loop.advance(29.0)
        assert rounds.told() == []
        loop.advance(1.0)
        assert rounds.told() == [("llama", "Pending")]
        assert rounds.outbox.waiting()[0].manifest["note"].startswith("QueueNotFound: ")
        events.wrote("uid-llama", before.job.status, after.job.status)
        loop.advance(60.0)
        assert len(rounds.told()) == 1
        events.wrote("uid-llama", after.job.status, after.job.status)
        assert loop.due == [], "the reason has not changed"

    serve(Server(), story)


def test_a_job_that_is_admitted_before_has_no_such_event() -> None:
    async def story(api: Api) -> None:
        rounds = Rounds(api)
        rounds.submit("llama", 5, queue="missing")
        known = rounds.sight.jobs.known("uid-llama")
        assert known is not None
        waiting = known.job.status.model_copy(update={"phase": "Pending", "reason": "NoRoom"})
        loop = Loop()
        rounds.writer.pending.loop = lambda: cast(asyncio.AbstractEventLoop, loop)
        rounds.writer.pending.wrote("uid-llama", known.job.status, waiting)
        loop.advance(60.0)
        assert rounds.told() == []

    serve(Server(), story)
