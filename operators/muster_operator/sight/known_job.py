"""One job as it was written, and what is known of its templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from muster import spec
from muster.lifecycle import find, is_admitted, is_true
from muster.lifecycle.conditions import ADMITTED, SUSPENDED
from muster_operator.sight.admission import Admission
from muster_operator.sight.known_pod import JobName
from muster_operator.sight.templates import Template

INVALID = "InvalidSpec"
"""Reason of whatever cannot be read, or is more than may be."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job, its status as it is written or as its pod tells it (`admission`), the template of each role, and what it
    was read from, to see what changed: the SHA-256 of its spec, and the text of its status."""

    job: spec.TrainingJob
    templates: Mapping[str, Template]  # by role
    spec_digest: bytes
    status_text: bytes | None  # None after a write of our own
    behind: spec.TrainingJobStatus | None = None  # what is written, where the job's pod tells more
    admission: Admission | None = None  # that is what it tells

    @property
    def written(self) -> spec.TrainingJobStatus:
        """The status as it is written."""
        return self.job.status if self.behind is None else self.behind

    @property
    def uid(self) -> str:
        """Of the job."""
        return self.job.metadata.uid

    @property
    def name(self) -> JobName:
        """Which job it is."""
        return JobName(self.uid, self.namespace, self.job.metadata.name)

    @property
    def namespace(self) -> str:
        """Of the job; the API server has filled it in."""
        return self.job.metadata.namespace or "default"

    @property
    def key(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.job.metadata.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a dry run said: what the pods really ask for, or (`refusal`) why they would be refused."""

    pod: spec.PodSpec | None = None  # None: as the template says
    refusal: str | None = None


class Learned(Protocol):
    """What is known of templates in a namespace."""

    def verdict(self, namespace: str, template: Template) -> Verdict | None:
        """The verdict; None while it is not known."""

    def is_fresh(self, namespace: str, template: Template) -> bool:
        """Whether that was learned lately enough for a job that has just come."""

    def ask(self, job: KnownJob) -> None:
        """Find out about the job's templates; `Jobs.learned` is called then."""


def has_room(status: spec.TrainingJobStatus) -> bool:
    """Whether the job was given room, is promised some, or may still be giving it back."""
    return is_admitted(status) or status.hold is not None or is_true(status, SUSPENDED)


def was_accepted(status: spec.TrainingJobStatus, generation: int) -> bool:
    """Whether an operator has taken the job as it is written now: bounds that came later, or are nearer now, do not
    concern it. While it is admitted the API server lets nobody edit its templates."""
    if is_admitted(status):
        return True
    said = find(status, ADMITTED)
    refused = said is not None and said.reason == INVALID
    return status.submitted_at is not None and status.observed_generation == generation and not refused
