"""Sentences about ranks that hang. Child processes find them out, one at a time, with limits of time and memory.

What is analysed was written by users' programs. Work on it in this process would delay the Lease, in a thread too,
because Python runs one thread at a time. Namespaces take turns, and one whose analyses take long waits before its next:
so a tenant cannot use up the operator's CPU, nor delay the sentences of others for long.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from muster.capture.describe import CPU_S, MEMORY_BYTES, HungPod
from muster_operator.cache.heartbeats import HungAttempt

WITHIN_S = 4.0 * CPU_S  # of the clock, on a busy node
_FREE_S = 2.0  # of an analysis; the start of the process alone takes a second on a busy node
_PAUSE_FACTOR = 10.0
_MAX_WAITING = 200  # analyses of a namespace
_UNKNOWN = "what they waited for was not found out"
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

Describe: TypeAlias = Callable[[Sequence[bytes]], Awaitable[str]]
"""From the pods of a job, a line of `muster.capture.describe` each, to the sentence. Raises OSError."""


async def describe_in_child(lines: Sequence[bytes], within_s: float | None = WITHIN_S) -> str:
    """Run `muster.capture.describe`, for `within_s` seconds at most (None: without a limit of the clock); the sentence
    says so if it was stopped."""
    environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    command = (sys.executable, "-m", "muster.capture.describe")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environ)
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate(b"\n".join(lines))
    except TimeoutError:
        return f"{_UNKNOWN} within {within_s:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        limits = f"{CPU_S} s of CPU and {MEMORY_BYTES >> 20} MiB of memory"
        return f"{_UNKNOWN}: that takes more than {limits}"
    return msgspec.json.decode(output, type=str)


@dataclass(slots=True)
class _Share:
    """Of a namespace: one analysis at a time, the next not before `ready_at` (monotonic); `waiting`: with the current
    one."""

    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ready_at: float = 0.0


@dataclass(slots=True)
class _Sentence:
    """Of an attempt with so many pods; None while it is not known."""

    attempt: int
    pods: int
    text: str | None = None


class HangSentences:
    """`wakeup` is called when a sentence that `get` had to leave open is known."""

    def __init__(self, wakeup: Callable[[], None], describe: Describe = describe_in_child) -> None:
        self._wakeup = wakeup
        self._describe = describe
        self._turn = asyncio.Semaphore(1)  # its waiters are served in order, at most one of each namespace
        self._shares: dict[str, _Share] = {}
        self._known: dict[str, _Sentence] = {}  # by job uid
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, uid: str, namespace: str, hung: HungAttempt) -> str | None:
        """The sentence about an attempt, empty if no message has ranks; None while it is being found out."""
        known = self._known.get(uid)
        if known is None or (known.attempt, known.pods) != (hung.attempt, len(hung.pods)):
            known = self._known[uid] = _Sentence(hung.attempt, len(hung.pods))
            pods = [HungPod(pod.pod, pod.node, pod.message) for pod in hung.pods.values()]
            task = asyncio.create_task(self._find_out(known, namespace, pods))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return known.text

    def retain(self, uids: AbstractSet[str]) -> None:
        """Forget the sentences of all other jobs."""
        for uid in self._known.keys() - uids:
            del self._known[uid]

    async def describe(self, namespace: str, lines: Sequence[bytes]) -> str:
        """The sentence about the pods of a job of this namespace; waits for its turn."""
        share = self._shares.setdefault(namespace, _Share())
        if share.waiting >= _MAX_WAITING:
            return f"{_UNKNOWN}: {_MAX_WAITING} jobs of the namespace wait for it already"
        share.waiting += 1
        try:
            async with share.lock:
                await asyncio.sleep(max(0.0, share.ready_at - time.monotonic()))
                async with self._turn:
                    return await self._describe_timed(share, lines)
        finally:
            share.waiting -= 1
            now = time.monotonic()
            self._shares = {name: one for name, one in self._shares.items() if one.waiting or one.ready_at > now}

    async def _describe_timed(self, share: _Share, lines: Sequence[bytes]) -> str:
        began = time.monotonic()
        try:
            return await self._describe(lines)
        except (OSError, msgspec.MsgspecError) as error:
            return f"{_UNKNOWN}: {error}"
        finally:
            ended = time.monotonic()
            share.ready_at = ended + _PAUSE_FACTOR * max(0.0, ended - began - _FREE_S)

    async def _find_out(self, sentence: _Sentence, namespace: str, pods: Sequence[HungPod]) -> None:
        sentence.text = await self.describe(namespace, [msgspec.json.encode(pod) for pod in pods])
        self._wakeup()
