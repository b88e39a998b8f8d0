"""Components are restarted after failures."""

from __future__ import annotations

import asyncio

import pytest

from muster.backoff import Backoff
from muster_operator.supervision import supervise


def test_a_failed_component_is_restarted_and_counted() -> None:
    begun = 0
    failed: list[str] = []
    done = asyncio.Event()

    async def part() -> None:
        nonlocal begun
        begun += 1
        if begun <= 3:
            raise [KeyError("a bug"), RecursionError(), ExceptionGroup("two", [ValueError(), KeyError()])][begun - 1]
        done.set()
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(supervise("lead", part, failed.append, Backoff(0.0, 0.0)))
        async with asyncio.timeout(30):
            await done.wait()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert failed == ["lead", "lead", "lead"]
