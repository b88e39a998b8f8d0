"""The writes of a leader: in which order, how many at once, and what waits after a failure.

By priority: the phases of a scheduling cycle (`write_cycle`), with what pods need before they are created (Services,
Secrets, PodGroups); finalizers, reports of invalid objects, trace statuses and TraceCaptures (`patch`, `delete`,
`write`); statuses that can wait (`next_deferred`). The order within a cycle is the one of `muster.cluster`. A long
cycle stops starting jobs after a while: what was not started is decided again on newer state, so that other changes
need not wait for thousands of writes.

A write that the API server rejects, fails or does not answer delays its own object only, with backoff: a webhook of one
namespace is down, a policy forbids a delete, a quota is contended. So does a status with repeated conflicts, because
its job is edited all the time. `refused` has the refused statuses of jobs. Errors that affect all objects end
the cycle: no connection, a lost Lease, failed authentication, too many requests. While the outcome of a write of a job
is unknown (`uncertain`), nothing else of that job is written.

docs/concepts/architecture.md has the requests that do not pass this queue: Lease, Events, dry runs, the operator's key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TypeAlias

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.backoff import Backoff
from muster.cluster import ObjectWrites, RemoveJob, WriteFlavorStatus, WritePhase, WriteQueueStatus, WriteStatus
from muster.errors import ClusterError
from muster.kube.async_client import INVALID_REQUEST_CODES, METADATA_ONLY, ApiError, AsyncKubeClient, is_server_wide
from muster.kube.objects import V1PodMeta
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.writes.refused import RefusedStatuses, StatusRefused
from muster_operator.writes.throttle import WriteThrottle
from muster_operator.writes.uncertain import UncertainWrites

_LOG = logging.getLogger("muster.operator")
_CONFLICT_CODES = (404, 409)  # the object changed or was deleted meanwhile
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_MIN_INVALID_PAUSE_S = 5.0  # for rejections that a user has to fix
_MAX_CONFLICTS = 2  # of one job in a row, before it is paused
_MAX_ENTRIES = 50_000
_CONCURRENT_OBJECTS = 64
_DEFERRED_BATCH = 64  # deferred statuses between two checks for changes


class _WriteResponse(msgspec.Struct):
    metadata: V1PodMeta


_write_response = msgspec.json.Decoder(_WriteResponse)


@dataclass(slots=True)
class WriteResult:
    """What was not written. `unwritten`: uids of jobs whose status or other writes are missing; `conflicts`: statuses
    rejected because the object changed meanwhile."""

    unwritten: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)  # jobs with a rejected write; `WriteQueue.pause_s` has the pause
    conflicts: int = 0
    refused: set[str] = field(default_factory=set)  # jobs whose status was not written for another reason
    api_error: ClusterError | None = None  # no answer, or no right to write at all

    @property
    def is_complete(self) -> bool:
        return not self.unwritten and self.api_error is None

    def merge(self, other: WriteResult) -> None:
        """Add the result of later writes."""
        self.unwritten |= other.unwritten
        self.deferred |= other.deferred
        self.conflicts += other.conflicts
        self.refused |= other.refused
        self.api_error = self.api_error or other.api_error


WriteObject: TypeAlias = Callable[[ObjectWrites, WriteResult], Awaitable[bool]]
"""Performs all writes of one object; False if its status was rejected because the object changed meanwhile."""


@dataclass(slots=True)
class _RetryState:
    backoff: Backoff = field(default_factory=lambda: Backoff(_MIN_PAUSE_S, _MAX_PAUSE_S))  # of cycles with a rejection
    reported: set[str] = field(default_factory=set)


class WriteQueue:
    """Pending writes, and the failures of earlier ones by object: a job's uid, or a path."""

    def __init__(
        self,
        api: AsyncKubeClient,
        cache: ClusterCache,
        uncertain: UncertainWrites,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.api = api
        self.uncertain = uncertain
        self.refused = RefusedStatuses(api, cache, uncertain.changed, clock)
        self.throttle = WriteThrottle(
            lambda: self._is_incomplete or cache.jobs.has_unobserved() or cache.pods.has_unbound(),
            lambda: cache.jobs.decided_count + cache.pods.bound_count,
            clock,
        )
        self._active_calls = 0
        self._is_incomplete = False  # the last cycle left something unwritten
        self._deferred: dict[str, ObjectWrites] = {}  # by job, oldest first
        self._retries: dict[str, _RetryState] = {}
        self._conflicts: dict[str, int] = {}  # by job: consecutive conflicts of its status
        self._clock = clock

    def begin_term(self) -> None:
        """A term begins: writes of the previous one are obsolete, and the timers that ended pauses are cancelled."""
        self._deferred.clear()
        for state in self._retries.values():
            state.backoff.end_pause()

    def end_term(self) -> None:
        """A term has ended: another operator may lead, and have its own refused statuses."""
        self.refused.clear()

    # ---- the writes of a scheduling cycle

    async def write_cycle(
        self, phases: Sequence[WritePhase], deferred: WritePhase, start_within_s: float, write_object: WriteObject
    ) -> WriteResult:
        """Write the phases, and queue the statuses that can wait. Both replace queued statuses of the same jobs."""
        for item in chain(*phases, deferred):
            self._deferred.pop(item.job_uid, None)
        self._deferred.update((item.job_uid, item) for item in deferred)
        result = await self.write(phases, start_within_s, write_object)
        self.throttle.record_writes(sum(map(len, phases)) - len(result.unwritten))
        self._is_incomplete = bool(result.unwritten - result.deferred)
        return result

    async def write(
        self, phases: Sequence[WritePhase], start_within_s: float, write_object: WriteObject
    ) -> WriteResult:
        """Write phase after phase until one is incomplete. No object is started after `start_within_s`."""
        result, until = WriteResult(), time.monotonic() + start_within_s
        self._active_calls += 1
        try:
            for number, phase in enumerate(phases):
                items = iter(phase)
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(_CONCURRENT_OBJECTS, len(phase))):
                        group.create_task(self._write_objects(items, result, until, write_object))
                if not result.is_complete:
                    result.unwritten.update(item.job_uid for later in phases[number + 1 :] for item in later)
                    break
        finally:
            self._active_calls -= 1
        result.unwritten.discard("")
        result.refused.discard("")
        return result

    async def _write_objects(
        self, items: Iterator[ObjectWrites], result: WriteResult, until: float, write_object: WriteObject
    ) -> None:
        """Write objects until none is left."""
        for item in items:
            if result.api_error is not None or time.monotonic() >= until:
                result.unwritten.add(item.job_uid)
                continue
            if not item.job_uid and not self.may_retry(object_key(item)):
                continue  # a queue or flavor, whose status is decided in every cycle until it is written
            if self.uncertain.concerns(item.job_uid):
                self._skip_uncertain(item, result)
                continue
            try:
                if await write_object(item, result):
                    self._conflicts.pop(item.job_uid, None)
                else:
                    result.conflicts += 1
                    result.unwritten.add(item.job_uid)
                    self._record_conflict(item.job_uid, result.deferred)
            except StatusRefused:
                result.unwritten.add(item.job_uid)
                result.refused.add(item.job_uid)
            except ClusterError as error:
                result.unwritten.add(item.job_uid)
                if not is_server_wide(error):
                    result.refused.add(item.job_uid)
                    self.record_refusal(object_key(item), error, result.deferred)
                else:
                    result.api_error = error
            except Exception as error:  # a bug that this object caused: the others are written
                _LOG.exception("write failed", extra={"of": object_key(item)})
                result.unwritten.add(item.job_uid)
                result.refused.add(item.job_uid)
                self._conflicts[item.job_uid] = _MAX_CONFLICTS  # it is paused
                bug = ApiError(500, "", f"{type(error).__name__}: {error}")
                self.record_failure(object_key(item), bug, result.deferred)

    def _record_conflict(self, uid: str, deferred: set[str]) -> None:
        """The status of a job was rejected because the job changed. After two in a row it is paused."""
        if len(self._conflicts) >= _MAX_ENTRIES and uid not in self._conflicts:
            self._conflicts.clear()  # costs only a later pause
        self._conflicts[uid] = count = self._conflicts.get(uid, 0) + 1
        if count >= _MAX_CONFLICTS:
            self.record_failure(uid, ApiError(409, "Conflict", "the job changed"), deferred)

    def paused_jobs(self) -> frozenset[str]:
        """Jobs that are not decided on now, since their statuses conflict repeatedly or are refused."""
        conflicts = self._conflicts.items()
        paused = (uid for uid, count in conflicts if count >= _MAX_CONFLICTS and not self.may_retry(uid))
        return self.refused.paused_jobs().union(paused)

    def _skip_uncertain(self, item: ObjectWrites, result: WriteResult) -> None:
        """Leave out the writes of a job until the outcome of an earlier one is known. Other writes may depend on its
        status, so that one ends the cycle after this phase, and the next decision waits; pods are written later."""
        if any(isinstance(one, WriteStatus | RemoveJob) for one in item.writes):
            result.unwritten.add(item.job_uid)
            self.uncertain.block_decisions(item.job_uid)
        else:
            result.deferred.add(item.job_uid)

    # ---- statuses that can wait: why gangs wait, and that they run

    # While new jobs are undecided and pods wait for kube-scheduler these writes would delay them: on a small control
    # plane a status costs more than the pod it describes, and in a burst of jobs most waits are short.

    def has_deferred(self) -> bool:
        """Whether statuses wait."""
        return bool(self._deferred)

    def clear_deferred(self) -> None:
        """Drop the queued statuses: everything is decided again."""
        self._deferred.clear()

    def next_deferred(self) -> WritePhase:
        """Remove and return the deferred statuses to write now, oldest first."""
        count = self.throttle.take_budget(min(_DEFERRED_BATCH, len(self._deferred)))
        waiting = (item for item in self._deferred.values() if not self.uncertain.concerns(item.job_uid))
        taken = tuple(islice(waiting, count))
        for item in taken:
            del self._deferred[item.job_uid]
        return taken

    def must_defer_events(self) -> bool:
        """Whether Events have to wait for other writes."""
        return self._active_calls > 0 or self.api.available_tokens() < 1.0 or self.throttle.blocks_deferred_writes()

    # ---- one object

    async def patch(self, path: str, body: bytes) -> V1PodMeta | None:
        """Patch the object at `path`, unless it has a pause. Returns its new metadata; None if it was not written: it
        changed meanwhile (the event of the change starts the next cycle), or the write was rejected. Raises
        ClusterError for errors that affect all objects."""
        return await self._write_one(path, self.api.patch, body)

    async def create(self, path: str, collection: str, body: bytes) -> V1PodMeta | None:
        """Create the object at `path` in its collection, unless it has a pause. Returns as `patch` does; None also if
        an object of the name exists."""
        return await self._write_one(path, lambda _, body: self.api.post(collection, body, accept=METADATA_ONLY), body)

    async def delete(self, path: str, options: bytes) -> bool:
        """Delete the object at `path`, unless it has a pause. Returns whether the deletion was requested; raises as
        `patch` does."""
        return await self._write_one(path, self.api.delete, options) is not None

    async def _write_one(
        self, path: str, call: Callable[[str, bytes], Awaitable[bytes]], body: bytes
    ) -> V1PodMeta | None:
        if not self.may_retry(path):
            return None
        try:
            answer = await call(path, body)
        except ClusterError as error:
            if is_server_wide(error):
                raise
            if not (isinstance(error, ApiError) and error.code in _CONFLICT_CODES):
                self.record_refusal(path, error, set())
            return None
        self.reset(path)
        return written_metadata(answer)

    def record_refusal(self, key: str, error: ClusterError, deferred: set[str]) -> None:
        """As `record_failure`, with a log line for the first of several in a row."""
        self.record_failure(key, error, deferred)
        what = "write refused" if isinstance(error, ApiError) else "write not answered"
        if self.first_report(key, what):
            _LOG.error(what, extra={"of": key, "why": str(error)})

    def record_failure(self, key: str, error: ClusterError, deferred: set[str]) -> None:
        """A write of this object was rejected or not answered: its backoff grows, once per cycle (`deferred`: the
        objects so far)."""
        if key in deferred:
            return
        deferred.add(key)
        if len(self._retries) >= _MAX_ENTRIES and key not in self._retries:
            self._retries.clear()  # costs only shorter pauses
        backoff = self._retries.setdefault(key, _RetryState()).backoff
        invalid = isinstance(error, ApiError) and error.code in INVALID_REQUEST_CODES
        backoff.fail(self._clock(), _MIN_INVALID_PAUSE_S if invalid else _MIN_PAUSE_S)

    def may_retry(self, key: str) -> bool:
        """Whether the object has no pause at present."""
        state = self._retries.get(key)
        return state is None or self._clock() >= state.backoff.retry_at

    def failures(self, key: str) -> int:
        """Consecutive cycles in which a write of the object was rejected."""
        state = self._retries.get(key)
        return 0 if state is None else state.backoff.failures

    def by_pause(self, keys: Iterable[str]) -> dict[float, set[str]]:
        """Objects with a rejected write, by seconds until the retry."""
        pauses: dict[float, set[str]] = {}
        for key in keys:
            pauses.setdefault(self.pause_s(key), set()).add(key)
        return pauses

    def pause_s(self, key: str) -> float:
        """Seconds from its last rejected write to the retry."""
        state = self._retries.get(key)
        return _MIN_PAUSE_S if state is None else state.backoff.pause_s

    def first_report(self, key: str, reason: str) -> bool:
        """Whether this is the first report of this reason since the rejections began; later calls return False."""
        state = self._retries.setdefault(key, _RetryState())
        if reason in state.reported:
            return False
        state.reported.add(reason)
        return True

    def reset(self, key: str) -> None:
        """Everything of the object was written."""
        self._retries.pop(key, None)


def object_key(item: ObjectWrites) -> str:
    """Key of the object that is written: a job's uid, or the queue's or flavor's name."""
    first = item.writes[0]
    if isinstance(first, WriteQueueStatus):
        return f"queue {first.queue}"
    return f"flavor {first.flavor}" if isinstance(first, WriteFlavorStatus) else item.job_uid


def written_metadata(answer: bytes) -> V1PodMeta:
    """The new metadata in the answer to a write, with managedFields, which are nested as deep as the user's object.
    Raises ClusterError where the answer is not an object."""
    try:
        return decode_truncated(_write_response.decode, answer).metadata
    except ValueError as error:
        raise ClusterError(f"the answer to a write is not an object: {answer[:200]!r}") from error
