"""Records usage in ConfigMaps while this operator leads, and reads them while it does not.

Once a minute, and soon after the deletion of a job, what jobs were charged for is added to the newest ConfigMap, in one
write with the resource version that was read: two operators cannot both succeed, and a repetition changes nothing.
After any write that was not acknowledged everything is read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from muster.api.spec import TrainingJob
from muster.backoff import Backoff
from muster.errors import ClusterError
from muster.kube.resources import CONFIG_MAPS
from muster.usage.record import EncodedDocument, UsageDocument, next_document
from muster.usage.report import RecordedUsage
from muster.usage.segments import JobSegments, segments_of
from muster.usage.totals import UsageTotals
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cached_workload import CachedWorkload
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.job_reader import InvalidJob
from muster_operator.usage.config_maps import JOBS, MAX_BYTES, ConfigMapNames, binary_data
from muster_operator.writes.queue import WriteQueue

_LOG = logging.getLogger("muster.operator")
INTERVAL_S = 60.0
_MIN_PAUSE_S, _BYTES_PER_S = 1.0, 50_000.0  # between two writes: deletions come in groups, and documents may be large
_MAX_FAILURES = 3  # in a row, after which the removal of jobs waits no longer
_FORGET_S = 600.0  # after which the number of a deleted job is dropped: by then every reader knows that it is counted
_STANDBY_FORGET_S = 540.0


@dataclass(slots=True)
class UsageRecorder:
    """`term`: identifies the term in which this operator leads, None while it does not. `reads_as_standby`: whether it
    answers readers while it does not lead. `wakeup`: set to begin the next pass soon, since a term began, a job was
    deleted, or one waits for its removal."""

    queue: WriteQueue
    cache: ClusterCache
    names: ConfigMapNames
    retention_days: int
    term: Callable[[], str | None]
    reads_as_standby: bool
    wakeup: asyncio.Event
    clock: Callable[[], float] = time.time
    interval_s: float = INTERVAL_S
    max_bytes: int = MAX_BYTES  # of a document
    _loaded_for: str | None = None  # the term in which the documents were read
    _newest: UsageDocument | None = None
    _version: str = ""  # resourceVersion of the newest
    _totals: dict[tuple[int, int], UsageTotals] = field(default_factory=dict)  # of all documents, by day and number
    _absent_since: dict[str, float] = field(default_factory=dict)  # jobs that do not exist, by uid
    _failures: Backoff = field(default_factory=lambda: Backoff(1.0, INTERVAL_S))  # of passes
    _size: int = 0  # of the newest document

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.wakeup.clear()
            try:
                if self.term() is not None:
                    await self.record()
                elif self.reads_as_standby:
                    await self._read_as_standby()
            except ClusterError as error:
                self._loaded_for = None
                pause_s = self._failures.fail(time.monotonic())
                _LOG.warning("usage is not recorded now", extra={"why": str(error), "again_in_s": pause_s})
                await asyncio.sleep(pause_s)
                continue
            except Exception:
                self._loaded_for = None
                self._failures.fail(time.monotonic())  # so that finished jobs are removed all the same
                raise
            self._failures.reset()
            if self._is_current():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.interval_s):
                        await self.wakeup.wait()
            await asyncio.sleep(_MIN_PAUSE_S + self._size / _BYTES_PER_S)

    def recorded(self) -> RecordedUsage:
        """What readers add to the observed jobs."""
        return RecordedUsage(tuple(self._totals.values()), self.cache.recorded_usage, self.cache.deleted_usage.all())

    def may_remove(self, known: CachedJob) -> bool:
        """Whether a finished job may be deleted: its usage is in the record, which is otherwise written soon. Also
        after repeated failures to write it: its usage is then kept in memory."""
        segments = _segments(known, self.clock())
        if (
            self._failures.failures >= _MAX_FAILURES
            or segments is None
            or self.cache.recorded_usage.get(known.uid, 0) >= segments.count
        ):
            return True
        self.wakeup.set()
        return False

    # ---- one pass

    async def record(self) -> None:
        """One pass as the leader. Raises `ClusterError` if the record cannot be read or written."""
        term = self.term()
        if term is None or not self.queue.api.outages.is_synced():
            return
        if self._loaded_for != term:
            await self._load()
            self._loaded_for = term
        now = self.clock()
        segments = self._observed(now)
        live = [one for one in segments.values() if one is not None]
        newest = None if self._newest is None else self._newest.without(self._forgotten(segments.keys(), now))
        deleted = self.cache.deleted_usage.all()
        unreadable = {one.metadata.uid for one in self.cache.jobs.invalid.values() if one.status is None}
        now_ms = round(now * 1000)
        encoded = await asyncio.to_thread(next_document, newest, now_ms, live, deleted, self.max_bytes, unreadable)
        if self._is_unchanged(encoded.document):
            return
        await self._write(encoded)
        before, self._newest, self._size = self._newest, encoded.document, encoded.size
        self._totals[encoded.document.day, encoded.document.number] = encoded.document.totals
        self._publish((*live, *deleted))
        if before is not None and (before.day, before.number) != (encoded.document.day, encoded.document.number):
            await self._clean_up(encoded.document)

    async def _load(self) -> None:
        stored = await self.names.read(self.queue.api)
        newest = stored[-1].document() if stored else None
        self._newest, self._version = newest, stored[-1].resource_version if stored else ""
        self._totals = {one.key: one.totals for one in stored}
        observed = self._observed(self.clock()).values()
        self._publish((*(one for one in observed if one is not None), *self.cache.deleted_usage.all()))

    def _observed(self, now: float) -> dict[str, JobSegments | None]:
        """The segments of all jobs that exist, by uid; None of one without any."""
        segments = {one.metadata.uid: _invalid_segments(one, now) for one in self.cache.jobs.invalid.values()}
        return segments | {known.uid: _segments(known, now) for known in self.cache.workloads()}

    def _publish(self, jobs: Sequence[JobSegments]) -> None:
        self.cache.on_usage_recorded({} if self._newest is None else self._newest.counts_of(jobs))

    async def _write(self, encoded: EncodedDocument) -> None:
        """Raises `ClusterError` if the document was not written: what is stored may be newer."""
        one = encoded.document
        path = self.names.path(one.day, one.number)
        if self._newest is not None and (self._newest.day, self._newest.number) == (one.day, one.number):
            body = {"metadata": {"resourceVersion": self._version}, "binaryData": binary_data(encoded)}
            written = await self.queue.patch(path, msgspec.json.encode(body))
        else:
            collection, body = CONFIG_MAPS.path(self.names.namespace), self.names.manifest(encoded)
            written = await self.queue.create(path, collection, msgspec.json.encode(body))
        if written is None:
            raise ClusterError(f"ConfigMap {self.names.name(one.day, one.number)} was not written", reason="NotWritten")
        self._version = str(written.version)

    async def _clean_up(self, newest: UsageDocument) -> None:
        """Delete documents older than the retention; the others keep their sums only."""
        for key in sorted(self._totals):
            path = self.names.path(*key)
            if key[0] < newest.day - self.retention_days:
                await self.queue.delete(path, b"{}")
                del self._totals[key]
            elif key == max((one for one in self._totals if one < (newest.day, newest.number)), default=None):
                await self.queue.patch(path, msgspec.json.encode({"binaryData": {JOBS: None}}))

    def _is_unchanged(self, document: UsageDocument) -> bool:
        old = UsageDocument(document.day) if self._newest is None else self._newest
        return (old.counted, old.running, old.settled) == (document.counted, document.running, document.settled)

    def _forgotten(self, existing: AbstractSet[str], now: float) -> list[str]:
        """Jobs with a number that have not existed for a while."""
        assert self._newest is not None
        absent = self._newest.counted.keys() - existing
        self._absent_since = {uid: self._absent_since.get(uid, now) for uid in absent}
        return [uid for uid, since in self._absent_since.items() if now >= since + _FORGET_S]

    # ---- helpers

    async def _read_as_standby(self) -> None:
        await self._load()
        self.cache.deleted_usage.drop_older(_STANDBY_FORGET_S)

    def _is_current(self) -> bool:
        """Whether the next pass can wait for its interval."""
        return self.term() is None or (
            self._loaded_for is not None and not self.cache.deleted_usage.missing(self.cache.recorded_usage)
        )


def _segments(known: CachedWorkload, now: float) -> JobSegments | None:
    """Segments in the status as written: not in one that was assumed because its write has no answer."""
    return segments_of(TrainingJob.model_construct(metadata=known.metadata, status=known.acknowledged_status), now)


def _invalid_segments(one: InvalidJob, now: float) -> JobSegments | None:
    """Segments of a job whose spec cannot be read: it still has what it was admitted with."""
    if one.status is None:
        return None
    return segments_of(TrainingJob.model_construct(metadata=one.metadata, status=one.status), now)
