"""What answers are made from: an observed state, the result of the last scheduling cycle, and who observed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from muster.api import spec
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kinds.trainingjob.adapter import training_jobs
from muster.model import Snapshot, Wait
from muster.state import snapshot_of
from muster.usage.report import RecordedUsage
from muster.visibility.jobs import ReadableJob, job_key, readable_job
from muster.visibility.types import DataSource, Preemption
from muster.workload import transitions
from muster.workload.conditions import S, is_admitted, is_finished
from muster.workload.observed import ObservedState
from muster.workload.protocol import Workload


@dataclass(frozen=True, slots=True)
class CycleView:
    """The result of one scheduling cycle, on `snapshot`. `waits` is by job uid."""

    id: str
    waits: Mapping[str, Wait]
    snapshot: Snapshot


@dataclass(frozen=True)
class ReadState:
    """Everything an answer depends on. `cycle` is None where this process has not made a decision: a standby, or before
    the first cycle. Then usage is computed from the statuses of the jobs. `preemptions`: newest first.
    `recorded_usage`: read after `observed`, or together with it."""

    observed: ObservedState
    cycle: CycleView | None
    identity: str
    leading: bool
    preemptions: tuple[Preemption, ...] = ()
    recorded_usage: RecordedUsage = RecordedUsage()

    @cached_property
    def snapshot(self) -> Snapshot:
        """The planner's input in the last cycle, else one of the observed state alone."""
        return snapshot_of(self.observed).snapshot if self.cycle is None else self.cycle.snapshot

    @cached_property
    def jobs(self) -> tuple[ReadableJob, ...]:
        """All jobs by namespace, name and kind."""
        jobs = (*map(readable_job, training_jobs(self.observed.workloads)), *self._others())
        return tuple(sorted(jobs, key=lambda job: (*job_key(job), job.kind)))

    def _others(self) -> Iterator[ReadableJob]:
        for one in self.observed.workloads:
            if isinstance(one, SuspendedWorkload):
                pods = sum(one.needed().values())
                status = one.status
                priority = one.own_priority if status.priority is None else status.priority
                yield ReadableJob(one.row.kind, one.metadata, status, one.queue, priority, pods, pods)

    @cached_property
    def jobs_by_namespace(self) -> Mapping[str, Sequence[ReadableJob]]:
        """The same, of each namespace that has any; in order, too."""
        found: dict[str, list[ReadableJob]] = {}
        for job in self.jobs:
            found.setdefault(job_key(job)[0], []).append(job)
        return found

    def live(self, job: ReadableJob) -> ReadableJob:
        """The job with why it waits as of the last cycle."""
        if self.cycle is None:
            return job
        status = live_status(job.metadata.uid, job.status, self.cycle.waits, self.observed.now)
        return job if status is job.status else replace(job, status=status)

    def position(self, job: ReadableJob) -> int | None:
        """That of `live`, for the price of a look-up."""
        wait = None if self.cycle is None else self.cycle.waits.get(job.metadata.uid)
        return job.status.queue_position if wait is None else wait.position

    def estimated_start(self, job: ReadableJob) -> float | None:
        """The same of `live`."""
        wait = None if self.cycle is None else self.cycle.waits.get(job.metadata.uid)
        return job.status.estimated_start if wait is None else wait.estimated_start

    @cached_property
    def source(self) -> DataSource:
        """What the answer says about its origin."""
        return DataSource(
            identity=self.identity,
            leading=self.leading,
            observed_at=self.observed.now,
            cycle=_newest_written_cycle(self.observed.workloads) if self.cycle is None else self.cycle.id,
            cycle_at=None if self.cycle is None else self.cycle.snapshot.now,
        )


def with_live_wait(job: spec.TrainingJob, waits: Mapping[str, Wait], now: float) -> spec.TrainingJob:
    """The job with why it waits as of the last cycle, which is written into its status less often."""
    status = live_status(job.metadata.uid, job.status, waits, now)
    return job if status is job.status else job.model_copy(update={"status": status})


def live_status(uid: str, status: S, waits: Mapping[str, Wait], now: float) -> S:
    """The status with why its job waits as of the last cycle."""
    wait = waits.get(uid)
    if wait is None or is_finished(status) or is_admitted(status):
        return status
    return transitions.set_waiting(status, wait, now)


def _newest_written_cycle(workloads: tuple[Workload, ...]) -> str:
    """The cycle in the status that was written last; empty if none has one."""
    written = ((_version(one), one.status.last_cycle) for one in workloads if one.status.last_cycle)
    return max(written, default=(0, ""))[1] or ""


def _version(workload: Workload) -> int:
    version = workload.metadata.resource_version
    return int(version) if version.isdecimal() else 0
