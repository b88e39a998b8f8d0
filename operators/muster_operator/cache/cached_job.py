"""A job as stored in the API server, and its parsed templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from muster.api import spec
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kinds.trainingjob.array_changes import with_index_statuses
from muster.kinds.trainingjob.arrays import array_name, index_of
from muster.kube.resources import TRAINING_JOBS, Resource
from muster.workload.conditions import ADMITTED, SUSPENDED, find_condition, is_admitted, is_condition_true
from muster_operator.cache.cached_pod import JobKey
from muster_operator.cache.cached_workload import StatusRequest
from muster_operator.cache.specs import CachedTemplate
from muster_operator.cache.status_patch import status_patch, status_replacement

INVALID = "InvalidSpec"
"""Reason of an object that cannot be read, or that exceeds a limit."""


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job, its templates, and what they were read from: the SHA-256 of the spec and the text of the status serve to
    detect changes."""

    job: spec.TrainingJob
    templates: Mapping[str, CachedTemplate]  # by role
    spec_digest: bytes
    status_text: bytes | None  # None after a write of our own
    # the written status, where an admission that has no answer yet counts instead
    written_status: spec.TrainingJobStatus | None = None
    array: CachedJob | None = None  # the array that it is an index of, which is what is stored

    @property
    def uid(self) -> str:
        return self.job.metadata.uid

    @property
    def name(self) -> JobKey:
        return JobKey(self.uid, self.namespace, self.job.metadata.name)

    @property
    def namespace(self) -> str:
        return self.job.metadata.namespace or "default"

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.job.metadata.name}"

    @property
    def resource(self) -> Resource:
        return TRAINING_JOBS

    @property
    def metadata(self) -> spec.ObjectMeta:
        return self.job.metadata

    @property
    def workload(self) -> TrainingJobWorkload:
        return TrainingJobWorkload(self.job)

    @property
    def queue(self) -> str:
        return self.job.spec.queue

    @property
    def status(self) -> spec.TrainingJobStatus:
        return self.job.status

    @property
    def acknowledged_status(self) -> spec.TrainingJobStatus:
        return self.job.status if self.written_status is None else self.written_status

    @property
    def version(self) -> str:
        return self.job.metadata.resource_version

    @property
    def paths(self) -> tuple[str, ...]:
        return (TRAINING_JOBS.path(self.namespace, array_name(self.job)),)

    def status_request(self, status: spec.QueueingStatus, *, guarded: bool = True) -> StatusRequest:
        """See `CachedWorkload`: its status is replaced, which costs the API server a fifth less than a patch. A
        replacement is always guarded by the version."""
        if self.array is not None:
            return self._index_status_request(self.array, status, guarded=guarded)
        path = TRAINING_JOBS.path(self.namespace, self.job.metadata.name, "status")
        if not guarded:
            return StatusRequest(path, status_patch(self.job.status, status))
        return StatusRequest(path, status_replacement(self.job.metadata, status), replaces=True)

    def _index_status_request(self, array: CachedJob, status: spec.QueueingStatus, *, guarded: bool) -> StatusRequest:
        index = index_of(self.job)
        assert index is not None
        assert isinstance(status, spec.TrainingJobStatus)
        changed = with_index_statuses(array.job, {index: status}, status.submitted_at or 0.0)
        return array.status_request(changed.status, guarded=guarded)


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """Result of a dry run: the pods as the API server would create them, or (`rejection`) why it rejects them."""

    pod: spec.PodSpec | None = None  # None: as in the template
    rejection: str | None = None


class PodRequirements(Protocol):
    """Dry-run results of templates, by namespace."""

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        """The result; None while there is none."""

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        """Whether the result is recent enough for a new job."""

    def request(self, job: CachedJob, on_result: Callable[[str, str], None]) -> None:
        """Request dry runs for the job's templates; `on_result(namespace, digest)` is called with each result."""


def holds_capacity(status: spec.TrainingJobStatus) -> bool:
    """Whether the job has or may still have capacity: admitted, nominated, or terminating."""
    return is_admitted(status) or status.nomination is not None or is_condition_true(status, SUSPENDED)


def was_accepted(status: spec.TrainingJobStatus, generation: int) -> bool:
    """Whether an operator has accepted the job's present spec, so that limits added or lowered later do not apply.
    While a job is admitted the API server rejects edits of its templates."""
    if is_admitted(status):
        return True
    condition = find_condition(status, ADMITTED)
    is_invalid = condition is not None and condition.reason == INVALID
    return status.submitted_at is not None and status.observed_generation == generation and not is_invalid
