"""What a cycle is going to write, job by job, and in which order.

The status of every job is written at most once per cycle, since each write is guarded by the resourceVersion that was
read. The order makes a crash after any write harmless: capacity is nominated before any victim is evicted for it, all
victims are marked before the first pod is stopped, and an admission is written before its first pod is created.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import ObjectWrites, Write, WritePhase, WriteStatus


class WritePriority(IntEnum):
    """When in a cycle a job is written; see `StatusUpdate.raise_priority` for a job with several reasons."""

    NOMINATION = 0  # nominated, or loses a nomination
    LIFECYCLE = 1  # its own lifecycle: ended, restarts, releases
    PREEMPTION = 2  # evicted, shrunk, or its nomination was taken
    ADMISSION = 3  # takes capacity: admitted, or grows
    WAIT_STATUS = 4  # why it waits: no other write depends on it
    PODS_READY = 5  # that it runs: no other write depends on it


@dataclass(slots=True)
class StatusUpdate:
    """What a cycle writes of one job."""

    job: TrainingJob  # as observed
    status: TrainingJobStatus
    priority: WritePriority
    writes: list[Write] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there is a status to write."""
        return self.status is not self.job.status and self.status != self.job.status

    def raise_priority(self, priority: WritePriority) -> None:
        """Add a reason to write the job: it is written after everything that any of its reasons depends on. A new
        nomination comes first in any case, since its victims are evicted after it."""
        if priority is WritePriority.NOMINATION or self.priority in (
            WritePriority.WAIT_STATUS,
            WritePriority.PODS_READY,
        ):
            self.priority = priority
        elif priority not in (WritePriority.WAIT_STATUS, WritePriority.PODS_READY):
            self.priority = max(self.priority, priority)


def write_phases(updates: Iterable[StatusUpdate]) -> tuple[list[WritePhase], WritePhase]:
    """All writes of the jobs: one phase per priority, except that all victims are marked in one phase before the next
    stops their pods; and, separately, what may be written later."""
    groups: dict[WritePriority, list[StatusUpdate]] = {priority: [] for priority in WritePriority}
    for update in updates:
        groups[update.priority].append(update)
    later = [*groups.pop(WritePriority.WAIT_STATUS), *groups.pop(WritePriority.PODS_READY)]
    phases: list[WritePhase] = []
    for priority, group in groups.items():
        if priority is WritePriority.PREEMPTION:
            phases.append(_phase((update, _status_writes(update)) for update in group))
            phases.append(_phase((update, update.writes) for update in group))
        else:
            phases.append(_phase((update, [*_status_writes(update), *update.writes]) for update in group))
    return [phase for phase in phases if phase], _phase(
        (update, [*_status_writes(update), *update.writes]) for update in later
    )


def _phase(writes_by_update: Iterable[tuple[StatusUpdate, list[Write]]]) -> WritePhase:
    return tuple(ObjectWrites(update.job.metadata.uid, tuple(writes)) for update, writes in writes_by_update if writes)


def _status_writes(update: StatusUpdate) -> list[Write]:
    if not update.changed:
        return []
    meta = update.job.metadata
    return [WriteStatus(meta.uid, update.status, meta.resource_version)]
