"""Restarts components of the operator that fail, with backoff.

Their input is written by users. If one object could end the process it would end the next leader as well, and no job
would start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from muster.backoff import Backoff

_LOG = logging.getLogger("muster.operator")


def component_backoff() -> Backoff:
    """Between restarts of a component. One that ran for five minutes starts with the shortest pause again."""
    return Backoff(1.0, 60.0, reset_after_s=300.0)


async def supervise(name: str, component: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run a component until cancelled, with restarts. `on_failure` is called on each failure, after it was logged."""
    backoff = component_backoff()
    while True:
        try:
            await component()
        except Exception:
            pause_s = backoff.fail(time.monotonic())
            _LOG.exception("component failed", extra={"component": name, "again_in_s": pause_s})
            on_failure(name)
            await asyncio.sleep(pause_s)
