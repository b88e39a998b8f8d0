"""An array as workloads: the array itself, and one for each index that is queued or runs.

Which indices are queued follows from the object alone: those with a status, then the lowest of the others, as many as
`parallelism` allows. So a restarted engine continues with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from muster import model
from muster.api import spec
from muster.api.spec import ArrayStatus, format_indices, index_ranges, index_set
from muster.cluster import PodView
from muster.kinds.trainingjob.adapter import TrainingJobWorkload, start_conditions_of
from muster.kinds.trainingjob.array_changes import retried, summarized
from muster.kinds.trainingjob.arrays import FROM_ARRAY, as_index, index_job, index_of, index_status
from muster.workload.conditions import is_finished
from muster.workload.observation import Observation
from muster.workload.protocol import RunState, RunWrites, Transition
from muster.workload.start_conditions import StartConditions
from muster.workload.timeouts import Timeouts

MAX_ACTIVE_BYTES = 224 * 2**10
"""Of the statuses of all active indices, so that that of their array stays below 256 KiB."""
_BYTES_PER_INDEX, _BYTES_PER_POD = 380, 60


@dataclass(frozen=True, slots=True)
class ArrayIndexWorkload(TrainingJobWorkload):
    """One index of an array. `stored`: what the object keeps of its status; None if it only waits."""

    stored: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """Another one than the array's: no job can depend on it by its name alone."""
        return "ArrayIndex"

    def with_status(self, status: spec.QueueingStatus) -> ArrayIndexWorkload:
        if status is self.job.status:
            return self
        return replace(self, job=self.job.model_copy(update={"status": status}))

    @property
    def ttl_after_finished_s(self) -> float | None:
        return None

    @property
    def start_conditions(self) -> StartConditions:
        """Where it waits for the same index of another array, it waits for that as for a job."""
        found, index = start_conditions_of(self.job.spec), index_of(self.job)
        named = (
            one.model_copy(update={"job": f"{one.job}-{index}"}) if one.each_index else one
            for one in found.dependencies
        )
        return replace(found, dependencies=tuple(named)) if found.dependencies else found

    @property
    def is_cancelled(self) -> bool:
        array = self.job.spec.array
        assert array is not None
        return self.job.spec.cancel or index_of(self.job) in index_set(array.cancel)


def _index_workload(job: spec.TrainingJob, index: int, stored: Mapping[str, Any] | None) -> ArrayIndexWorkload:
    return ArrayIndexWorkload(as_index(job, index, index_status(job, index, stored), stored), stored)


@dataclass(frozen=True, slots=True)
class ArrayWorkload(TrainingJobWorkload):
    """The array itself: it is never placed. It ends once all of its indices have."""

    def with_status(self, status: spec.QueueingStatus) -> ArrayWorkload:
        if status is self.job.status:
            return self
        return ArrayWorkload(self.job.model_copy(update={"status": status}))

    @property
    def is_group(self) -> bool:
        return True

    def gang(self, index: int) -> TrainingJobWorkload | None:
        found = index_job(self.job, index)
        return None if found is None else TrainingJobWorkload(found)

    @property
    def start_conditions(self) -> StartConditions:
        found = start_conditions_of(self.job.spec)
        whole = tuple(one for one in found.dependencies if not one.each_index)
        return found if whole == found.dependencies else replace(found, dependencies=whole)

    @property
    def active_gangs(self) -> int:
        return len((self.job.status.array or ArrayStatus()).active)

    def roles(self) -> tuple[model.Role, ...]:
        return ()

    @property
    def roles_key(self) -> object:
        return ()

    def allows(self, placement: Sequence[spec.RolePlacementStatus]) -> bool:
        return True

    def observe(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunState:
        return RunState(None, Transition(status))

    def start(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> RunWrites:
        return RunWrites()

    def stop(self, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
        return RunWrites()

    def record(self, status: spec.QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition:
        """See `Workload`: indices that are cancelled before they start, a retry, and how far the array is."""
        assert isinstance(status, spec.TrainingJobStatus)
        assert self.job.spec.array is not None
        wanted, indices = self.job.spec.array, status.array or ArrayStatus()
        if wanted.retries > indices.retries and not self.job.spec.cancel:
            status = retried(status, indices, wanted.retries, observation.now)
            indices = status.array or indices
        known = index_set(indices.cancelled)
        started = index_set(indices.succeeded) | index_set(indices.failed) | {int(one) for one in indices.active}
        cancelled = (index_set(wanted.cancel) & index_set(wanted.indices)) - started
        if not cancelled <= known:
            indices = indices.model_copy(update={"cancelled": format_indices(known | cancelled)})
            status = status.model_copy(update={"array": indices})
        return Transition(summarized(self.job.spec, status, observation.now))


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array as the engine sees it: the array, and its indices that are queued or run."""

    job: spec.TrainingJob
    array: ArrayWorkload
    indices: Mapping[int, ArrayIndexWorkload]

    def workloads(self) -> Iterator[TrainingJobWorkload]:
        yield self.array
        yield from self.indices.values()


def array_view(job: spec.TrainingJob, before: ArrayView | None = None) -> ArrayView:
    """The workloads of an array; those that did not change since `before` stay the same objects."""
    if before is not None and before.job is job:
        return before
    assert job.spec.array is not None
    known = before.indices if before is not None and _inherits_same(before.job, job) else {}
    stored = {int(index): one for index, one in (job.status.array or ArrayStatus()).active.items()}
    indices: dict[int, ArrayIndexWorkload] = {}
    for index, own in [*stored.items(), *((one, None) for one in _next_indices(job, stored))]:
        old = known.get(index)
        indices[index] = old if old is not None and old.stored == own else _index_workload(job, index, own)
    return ArrayView(job, ArrayWorkload(job), indices)


def workloads_of(job: spec.TrainingJob) -> Iterator[TrainingJobWorkload]:
    """The workload of a job, or those of an array."""
    if job.spec.array is None:
        yield TrainingJobWorkload(job)
    else:
        yield from array_view(job).workloads()


def _inherits_same(old: spec.TrainingJob, new: spec.TrainingJob) -> bool:
    def inherited(job: spec.TrainingJob) -> tuple[object, ...]:
        meta, status, array = job.metadata, job.status, job.status.array
        first = 0 if array is None else array.first_attempt
        own = (getattr(status, name) for name in FROM_ARRAY)
        return (meta.uid, meta.name, meta.generation, meta.deletion_timestamp, first, status.dependencies, *own)

    return old.spec is new.spec and inherited(old) == inherited(new)


def _next_indices(job: spec.TrainingJob, active: Mapping[int, object]) -> Iterator[int]:
    """The indices that are queued beside those with a status: the lowest ones that have not started."""
    wanted, status = job.spec, job.status
    assert wanted.array is not None
    stops = wanted.suspend or wanted.cancel or job.metadata.deletion_timestamp is not None
    if stops or is_finished(status):
        return iter(())
    indices = status.array or ArrayStatus()
    begun = [index_set(one) for one in (indices.succeeded, indices.failed, indices.cancelled, wanted.array.cancel)]
    waiting = (
        index
        for first, last in sorted(index_ranges(wanted.array.indices))
        for index in range(first, last + 1)
        if index not in active and not any(index in one for one in begun)
    )
    pods = sum(role.replicas for role in wanted.roles)
    most = max(1, MAX_ACTIVE_BYTES // (_BYTES_PER_INDEX + pods * _BYTES_PER_POD))
    return islice(waiting, max(0, min(wanted.array.parallelism, most) - len(active)))
