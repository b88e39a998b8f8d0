"""Runs components for as long as the operator lives: a failed one is restarted, an ended one ends the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from muster.backoff import Backoff
from muster.errors import MusterError

_LOG = logging.getLogger("muster.operator")


class ComponentExited(MusterError):
    """A component that the operator cannot run without has ended."""


async def supervise(
    name: str, component: Callable[[], Awaitable[None]], on_failure: Callable[[str], None], backoff: Backoff
) -> None:
    """Run a component until cancelled, with restarts. `on_failure` is called on each failure, after it was logged.

    Its input is written by users. If one object could end the process it would end the next leader as well, and no job
    would start.
    """
    while True:
        try:
            await component()
        except Exception:
            pause_s = backoff.fail(time.monotonic())
            _LOG.exception("component failed", extra={"component": name, "again_in_s": pause_s})
            on_failure(name)
            await asyncio.sleep(pause_s)


def exited_components(tasks: Sequence[asyncio.Task[None]], names: Sequence[str]) -> str:
    """Names of the components that ended."""
    return ", ".join(name for task, name in zip(tasks, names, strict=True) if task.done())
