"""What a round is going to write, job by job, and in which order.

Every job is written at most once a round, since each write is guarded by the version that was read. The order makes a
crash after any write harmless: room is promised before anyone leaves for it, everyone who leaves is told before the
first pod is stopped, and a gang is admitted on paper before its first pod exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from muster.cluster import ObjectWrites, Phase, Write, WriteStatus
from muster.spec import TrainingJob, TrainingJobStatus


class Rank(IntEnum):
    """When in a round a job is written; see `Draft.move` for a job with several reasons."""

    HOLD = 0  # promised room, or gives a promise back
    LIFE = 1  # its own life went on: ended, restarts, releases
    VICTIM = 2  # told to leave, to shrink, or that its hold went to somebody
    ADMIT = 3  # takes room: admitted, or grows
    NEWS = 4  # why it waits: nothing waits for this to be written,
    READY = 5  # nor for this: that it runs


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

    def move(self, rank: Rank) -> None:
        """One more reason to write the job: it waits for whatever any of its reasons waits for.

        A new promise comes first whatever else is written along, since those who leave for it wait for it.
        """
        if rank is Rank.HOLD or self.rank in (Rank.NEWS, Rank.READY):
            self.rank = rank
        elif rank not in (Rank.NEWS, Rank.READY):
            self.rank = max(self.rank, rank)


def in_phases(drafts: Iterable[Draft]) -> tuple[list[Phase], Phase]:
    """All writes of the jobs: a phase for each rank, but victims all told in one before the next stops their pods; and,
    apart, what may be written afterwards."""
    groups: dict[Rank, list[Draft]] = {rank: [] for rank in Rank}
    for draft in drafts:
        groups[draft.rank].append(draft)
    later = [*groups.pop(Rank.NEWS), *groups.pop(Rank.READY)]
    phases: list[Phase] = []
    for rank, group in groups.items():
        if rank is Rank.VICTIM:
            phases.append(_phase((draft, _status(draft)) for draft in group))
            phases.append(_phase((draft, draft.actions) for draft in group))
        else:
            phases.append(_phase((draft, [*_status(draft), *draft.actions]) for draft in group))
    return [phase for phase in phases if phase], _phase((draft, [*_status(draft), *draft.actions]) for draft in later)


def _phase(parts: Iterable[tuple[Draft, list[Write]]]) -> Phase:
    return tuple(ObjectWrites(draft.job.metadata.uid, tuple(writes)) for draft, writes in parts if writes)


def _status(draft: Draft) -> list[Write]:
    if not draft.changed:
        return []
    meta = draft.job.metadata
    return [WriteStatus(meta.uid, draft.status, meta.resource_version)]
