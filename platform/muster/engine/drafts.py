"""What a round is going to write, job by job, and in which order.

Every job is written at most once a round, since each write is guarded by the version that was read. The order makes a
crash after any write harmless: room is promised before anyone leaves for it, everyone who leaves is told before the
first pod is stopped, and a gang is admitted on paper before its first pod exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from muster.cluster import Write, WriteStatus
from muster.spec import TrainingJob, TrainingJobStatus


class Rank(IntEnum):
    """When in a round a job is written; a later reason to write it only moves it as `raise_to` says."""

    HOLD = 0  # promised room, or gives a promise back
    LIFE = 1  # its own life went on: ended, restarts, releases
    VICTIM = 2  # told to leave or to shrink
    ADMIT = 3
    NEWS = 4  # why it waits


@dataclass(slots=True)
class Draft:
    """One job's part of a round."""

    job: TrainingJob  # as observed
    status: TrainingJobStatus
    rank: Rank
    actions: list[Write] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there is a status to write."""
        return self.status is not self.job.status and self.status != self.job.status


def in_order(drafts: Iterable[Draft]) -> list[Write]:
    """All writes of the jobs: by rank, each status before its actions; victims all before the first of their pods."""
    ranked = sorted(drafts, key=lambda draft: draft.rank)
    writes: list[Write] = []
    for rank in Rank:
        group = [draft for draft in ranked if draft.rank is rank]
        if rank is Rank.VICTIM:
            for draft in group:
                writes.extend(_status(draft))
            for draft in group:
                writes.extend(draft.actions)
        else:
            for draft in group:
                writes.extend(_status(draft))
                writes.extend(draft.actions)
    return writes


def _status(draft: Draft) -> list[Write]:
    if not draft.changed:
        return []
    meta = draft.job.metadata
    return [WriteStatus(meta.uid, draft.status, meta.resource_version)]
