"""What a round is going to write, job by job, and in which order.

Every job is written at most once a round, since each write is guarded by the version that was read. The order makes a
crash after any write harmless: room is promised before anyone leaves for it, everyone who leaves is told before the
first pod is stopped, and a gang is admitted on paper before its first pod exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from muster.cluster import ObjectWrites, Write, WritePhase, WriteStatus
from muster.spec import TrainingJob, TrainingJobStatus


class WritePriority(IntEnum):
    """When in a round a job is written; see `Draft.move` for a job with several reasons."""

    NOMINATION = 0  # promised room, or gives a promise back
    LIFECYCLE = 1  # its own life went on: ended, restarts, releases
    PREEMPTION = 2  # told to leave, to shrink, or that its hold went to somebody
    ADMISSION = 3  # takes room: admitted, or grows
    WAIT_STATUS = 4  # why it waits: nothing waits for this to be written,
    PODS_READY = 5  # nor for this: that it runs


@dataclass(slots=True)
class StatusUpdate:
    """One job's part of a round."""

    job: TrainingJob  # as observed
    status: TrainingJobStatus
    priority: WritePriority
    writes: list[Write] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there is a status to write."""
        return self.status is not self.job.status and self.status != self.job.status

    def raise_priority(self, priority: WritePriority) -> None:
        """One more reason to write the job: it waits for whatever any of its reasons waits for.

        A new promise comes first whatever else is written along, since those who leave for it wait for it.
        """
        if priority is WritePriority.NOMINATION or self.priority in (
            WritePriority.WAIT_STATUS,
            WritePriority.PODS_READY,
        ):
            self.priority = priority
        elif priority not in (WritePriority.WAIT_STATUS, WritePriority.PODS_READY):
            self.priority = max(self.priority, priority)


def write_phases(updates: Iterable[StatusUpdate]) -> tuple[list[WritePhase], WritePhase]:
    """All writes of the jobs: a phase for each rank, but victims all told in one before the next stops their pods; and,
    apart, what may be written afterwards."""
    groups: dict[WritePriority, list[StatusUpdate]] = {rank: [] for rank in WritePriority}
    for draft in updates:
        groups[draft.priority].append(draft)
    later = [*groups.pop(WritePriority.WAIT_STATUS), *groups.pop(WritePriority.PODS_READY)]
    phases: list[WritePhase] = []
    for rank, group in groups.items():
        if rank is WritePriority.PREEMPTION:
            phases.append(_phase((draft, _status_writes(draft)) for draft in group))
            phases.append(_phase((draft, draft.writes) for draft in group))
        else:
            phases.append(_phase((draft, [*_status_writes(draft), *draft.writes]) for draft in group))
    return [phase for phase in phases if phase], _phase(
        (draft, [*_status_writes(draft), *draft.writes]) for draft in later
    )


def _phase(writes_by_update: Iterable[tuple[StatusUpdate, list[Write]]]) -> WritePhase:
    return tuple(ObjectWrites(draft.job.metadata.uid, tuple(writes)) for draft, writes in writes_by_update if writes)


def _status_writes(update: StatusUpdate) -> list[Write]:
    if not update.changed:
        return []
    meta = update.job.metadata
    return [WriteStatus(meta.uid, update.status, meta.resource_version)]
