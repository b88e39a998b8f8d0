"""Writes statuses of arrays: those of many indices in one request, since one object has all of them.

While a request of an array is in flight, further statuses of its indices wait and are sent together. Each counts only
if neither the spec nor the status of its own index has changed since it was decided; that of the object has, with every
write.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from muster.api import spec
from muster.cluster import RecordEvent, WriteStatus
from muster.kinds.trainingjob.array_changes import with_array_status, with_index_statuses
from muster.kinds.trainingjob.arrays import split_index_key
from muster.workload.conditions import has_terminated
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.jobs import JobCache

PutStatus = Callable[[CachedJob, spec.TrainingJobStatus, Sequence[RecordEvent]], Awaitable[bool]]
"""Writes the status of an object; False if there is a newer version of it."""


@dataclass(slots=True)
class _Batch:
    """Statuses by the key of their index, or the uid of the array, with their events."""

    entries: dict[str, tuple[WriteStatus, Sequence[RecordEvent]]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    error: BaseException | None = None
    is_sent: bool = False


@dataclass(slots=True)
class ArrayStatusWriter:
    """`put` writes the status of an object; `on_index_written(known, status)` is called for each index of it."""

    jobs: JobCache
    put: PutStatus
    is_current: Callable[[CachedJob, WriteStatus], bool]
    on_index_written: Callable[[CachedJob, spec.TrainingJobStatus], None]
    clock: Callable[[], float] = time.time
    _open: dict[str, _Batch] = field(default_factory=dict)  # by array
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def write(self, write: WriteStatus, events: Sequence[RecordEvent]) -> bool:
        """Write one status, with others of its array; False if it was decided on an older state."""
        uid, _ = split_index_key(write.job_uid)
        batch = self._open.setdefault(uid, _Batch())
        batch.entries[write.job_uid] = write, events
        await asyncio.sleep(0)  # others of this phase join the batch
        async with self._locks[uid]:
            if not batch.is_sent:
                batch.is_sent = True
                del self._open[uid]
                try:
                    batch.written = await self._send(uid, batch)
                except BaseException as error:
                    batch.error = error
        if batch.error is not None:
            raise batch.error
        return write.job_uid in batch.written

    async def _send(self, uid: str, batch: _Batch) -> set[str]:
        """The keys of the statuses that were written, or that are not kept."""
        array = self.jobs.get(uid)
        if array is None:
            return set()
        indices: dict[int, tuple[CachedJob, spec.TrainingJobStatus]] = {}
        job, taken, recorded = array.job, set[str](), list[RecordEvent]()
        for key, (write, events) in batch.entries.items():
            known, (_, index), status = self.jobs.get(key), split_index_key(key), write.status
            assert isinstance(status, spec.TrainingJobStatus)
            if known is None or not self.is_current(known, write):
                continue
            taken.add(key)
            recorded += events
            if index is not None:
                indices[index] = known, status
            elif isinstance(write.old, spec.TrainingJobStatus):
                job = with_array_status(job, write.old, status)
        job = with_index_statuses(job, {index: status for index, (_, status) in indices.items()}, self.clock())
        if job.status is not array.job.status and not await self.put(array, job.status, recorded):
            return set()
        for known, status in indices.values():
            self.on_index_written(known, status)
            if has_terminated(status):
                self.jobs.on_index_ended(known, status)
        return taken
