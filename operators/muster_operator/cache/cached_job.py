"""One job as it was written, and what is known of its templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from muster import spec
from muster.lifecycle import find_condition, is_admitted, is_condition_true
from muster.lifecycle.conditions import ADMITTED, SUSPENDED
from muster_operator.cache.admission_signing import PodAdmissionRecord
from muster_operator.cache.cached_pod import JobKey
from muster_operator.cache.templates import CachedTemplate

INVALID = "InvalidSpec"
"""Reason of whatever cannot be read, or is more than may be."""


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job, its status as it is written or as its pod tells it (`admission`), the template of each role, and what it
    was read from, to see what changed: the SHA-256 of its spec, and the text of its status."""

    job: spec.TrainingJob
    templates: Mapping[str, CachedTemplate]  # by role
    spec_digest: bytes
    status_text: bytes | None  # None after a write of our own
    lagging_status: spec.TrainingJobStatus | None = None  # what is written, where the job's pod tells more
    admission: PodAdmissionRecord | None = None  # that is what it tells

    @property
    def written_status(self) -> spec.TrainingJobStatus:
        """The status as it is written."""
        return self.job.status if self.lagging_status is None else self.lagging_status

    @property
    def uid(self) -> str:
        """Of the job."""
        return self.job.metadata.uid

    @property
    def name(self) -> JobKey:
        """Which job it is."""
        return JobKey(self.uid, self.namespace, self.job.metadata.name)

    @property
    def namespace(self) -> str:
        """Of the job; the API server has filled it in."""
        return self.job.metadata.namespace or "default"

    @property
    def key(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.job.metadata.name}"


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """What a dry run said: what the pods really ask for, or (`refusal`) why they would be refused."""

    pod: spec.PodSpec | None = None  # None: as the template says
    refusal: str | None = None


class PodRequirements(Protocol):
    """What is known of templates in a namespace."""

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        """The verdict; None while it is not known."""

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        """Whether that was learned lately enough for a job that has just come."""

    def request(self, job: CachedJob) -> None:
        """Find out about the job's templates; `Jobs.learned` is called then."""


def holds_capacity(status: spec.TrainingJobStatus) -> bool:
    """Whether the job was given room, is promised some, or may still be giving it back."""
    return is_admitted(status) or status.nomination is not None or is_condition_true(status, SUSPENDED)


def was_accepted(status: spec.TrainingJobStatus, generation: int) -> bool:
    """Whether an operator has taken the job as it is written now: bounds that came later, or are nearer now, do not
    concern it. While it is admitted the API server lets nobody edit its templates."""
    if is_admitted(status):
        return True
    said = find_condition(status, ADMITTED)
    refused = said is not None and said.reason == INVALID
    return status.submitted_at is not None and status.observed_generation == generation and not refused
