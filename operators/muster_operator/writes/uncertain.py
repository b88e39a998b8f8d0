"""Writes with an unknown outcome: sent, and no answer before the connection broke or the time was over.

The API server may still execute such a request. So it is repeated in the background until there is any answer: a status
is guarded by its version and a pod by its name, so one of the two requests is rejected. Then the object is read,
because the watch may lag. It is also read after a conflict that our own earlier write may have caused, and after a 5xx.

Until then no other write of that job is made (`concerns`), and its capacity counts as taken: an admission as if it was
written (`JobCache.assume_status`), a release as if it was not. Other jobs are decided on, except (`settle`) where a
decision on the state before the write may contradict it: a nomination or an eviction concerns several jobs, and a
decision may need to write the job itself. While many writes have no answer nothing is decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from muster.backoff import Backoff
from muster.errors import ClusterError
from muster.kinds.trainingjob.arrays import split_index_key
from muster.kube.async_client import ApiError, AsyncKubeClient, NoAnswer, is_server_wide
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.informers import read_by_name

_LOG = logging.getLogger("muster.operator")
Write = Callable[[], Awaitable[bytes]]
_REQUEST_LIFETIME_S = 65.0  # the API server aborts requests after 60 s: then reading is enough


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """An object of a job that is written. `affects`: whose capacity depends on the write; nothing is decided while one
    that affects several jobs is uncertain. The write is repeated only while `still_wanted`; `on_settled` is called once
    the outcome of a write without an answer is known, and the object was read."""

    uid: str  # of the job
    path: str
    affects: Literal["no job", "its job", "several jobs"] = "its job"
    still_wanted: Callable[[], bool] = lambda: True
    on_settled: Callable[[], None] = lambda: None

    def concerns(self, uid: str) -> bool:
        """Whether it is written for this job; the object of an array has the statuses of all of its indices."""
        return uid == self.uid or split_index_key(uid)[0] == self.uid

    @property
    def is_pod(self) -> bool:
        """Whether the object is a pod; else it is the job itself."""
        return self.path.rpartition("/")[0].endswith("/pods")


@dataclass(slots=True)
class _UncertainWrite:
    target: WriteTarget
    write: Write | None  # None: the object only has to be read
    since: float
    blocks: bool
    recheck: bool  # the job is to be decided again once the outcome is known
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class UncertainWrites:
    """By path, of objects that queue, their statuses, and pods. `changed` is called when an outcome becomes known. A
    decision waits `settle_s` for the outcome of a new uncertain write; while more than `max_writes` have no answer,
    nothing is decided."""

    api: AsyncKubeClient
    cache: ClusterCache
    changed: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    settle_s: float = 1.0
    max_writes: int = 8
    _writes: dict[str, _UncertainWrite] = field(default_factory=dict)
    _settled_jobs: set[str] = field(default_factory=set)

    async def perform(self, target: WriteTarget, write: Write) -> bytes:
        """Write the object. Raises what the write raises, and records the write if there was no answer, or the object
        if our state of it may be old."""
        try:
            return await write()
        except ApiError as error:
            if error.code == 409 or error.code >= 500:
                # The read is quick, since the API server answers. Decisions need no pod: its job's status counts.
                self._record(target, None, blocks=not target.is_pod)
            raise
        except NoAnswer:
            if target.affects != "no job":  # else the guard by version is enough
                self._record(target, write, blocks=target.affects == "several jobs")
            raise

    def concerns(self, uid: str) -> bool:
        """Whether the outcome of a write of this job is unknown."""
        return bool(self._writes) and any(one.target.concerns(uid) for one in self._writes.values())

    def recheck_when_settled(self, uid: str) -> bool:
        """The pause of this job is over. If the outcome of one of its writes is unknown the job is decided again once
        that is known (True)."""
        for one in self._writes.values():
            one.recheck = one.recheck or one.target.concerns(uid)
        return self.concerns(uid)

    def block_decisions(self, uid: str) -> None:
        """A decision needs this job: nothing is decided until the outcome of its writes is known."""
        for one in self._writes.values():
            one.blocks = one.blocks or one.target.concerns(uid)

    async def settle(self) -> None:
        """Wait briefly for uncertain writes that are new or block decisions. Raises ClusterError while nothing may be
        decided."""
        now, writes = self.clock(), self._writes.values()
        tasks = [one.task for one in writes if one.task is not None and (one.blocks or now < one.since + self.settle_s)]
        if tasks:
            await asyncio.wait(tasks, timeout=self.settle_s)
        blocking = [path for path, one in self._writes.items() if one.blocks]
        unanswered = [path for path, one in self._writes.items() if one.write is not None]
        if blocking or len(unanswered) > self.max_writes:
            raise ClusterError(f"the outcome of writes is not known yet: {', '.join(blocking or unanswered)}")

    def take_settled_jobs(self) -> set[str]:
        """Jobs with a write whose outcome became known since the last call: they are to be decided again."""
        settled, self._settled_jobs = self._settled_jobs, set()
        return settled

    def clear(self) -> None:
        """Another operator led meanwhile: our writes are obsolete, and everything is listed again."""
        for one in tuple(self._writes.values()):
            if one.task is not None:
                one.task.cancel()
            self._forget(one)

    def _record(self, target: WriteTarget, write: Write | None, *, blocks: bool) -> None:
        earlier = self._writes.pop(target.path, None)
        if earlier is not None and earlier.task is not None:
            earlier.task.cancel()
        one = self._writes[target.path] = _UncertainWrite(
            target, write, self.clock(), blocks, recheck=write is not None
        )
        one.task = asyncio.create_task(self._resolve(one))

    async def _resolve(self, one: _UncertainWrite) -> None:
        """Find out the outcome, however long it takes."""
        backoff = Backoff(0.2, 15.0)
        while True:
            try:
                await self._resolve_once(one)
            except Exception as error:  # no answer, no right to write, or a bug
                pause_s = backoff.fail(self.clock())
                extra = {"object": one.target.path, "why": str(error), "again_in_s": pause_s}
                _LOG.warning("outcome of a write unknown", extra=extra, exc_info=not isinstance(error, ClusterError))
                await asyncio.sleep(pause_s)
            else:
                break
        self._forget(one)
        if one.recheck:
            self._settled_jobs.add(one.target.uid)
            self.changed()
        if one.write is not None:  # else its rejection was handled when it was answered
            one.target.on_settled()
        _LOG.info("write settled", extra={"object": one.target.path, "had_answer": one.write is None})

    async def _resolve_once(self, one: _UncertainWrite) -> None:
        if one.write is not None and one.target.still_wanted() and self.clock() - one.since < _REQUEST_LIFETIME_S:
            try:
                await one.write()
            except ApiError as error:
                if is_server_wide(error):
                    raise  # not executed; the outcome of the first is still unknown
        await read_into_cache(self.api, self.cache, one.target.path)

    def _forget(self, one: _UncertainWrite) -> None:
        del self._writes[one.target.path]
        if not self.concerns(one.target.uid):
            self.cache.store(one.target.uid).end_assumption(one.target.uid)


async def read_into_cache(api: AsyncKubeClient, cache: ClusterCache, path: str) -> None:
    """Read the object at a path into the cache. Raises as `read_by_name` does."""
    collection, _, name = path.rpartition("/")
    found = cache.deliver(collection)
    if found is None:
        return
    kind, deliver = found
    for item in await read_by_name(api, collection, name, kind):
        try:
            deliver(item)
        except Exception:  # a bug that this object caused: the watch skips it, and others are decided on
            _LOG.exception("object skipped", extra={"object": path})
