"""Components are restarted after failures, with growing backoff."""

from __future__ import annotations

import asyncio

import pytest

from muster_operator import supervisor
from muster_operator.supervisor import Backoff


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_backoff_grows_to_a_maximum_and_resets_after_success() -> None:
    clock = Clock()
    pauses = Backoff((1.0, 8.0), clock)
    found = []
    for _ in range(6):
        found.append(pauses.next_s())
        clock.now += found[-1]
    assert found == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    clock.now += 301.0
    assert pauses.next_s() == 1.0


def test_a_failed_component_is_restarted_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "Backoff", lambda: Backoff((0.0, 0.0)))
    begun = 0
    told: list[str] = []
    done = asyncio.Event()

    async def part() -> None:
        nonlocal begun
        begun += 1
        if begun <= 3:
            raise [KeyError("a bug"), RecursionError(), ExceptionGroup("two", [ValueError(), KeyError()])][begun - 1]
        done.set()
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(supervisor.supervise("lead", part, told.append))
        async with asyncio.timeout(30):
            await done.wait()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert told == ["lead", "lead", "lead"]
