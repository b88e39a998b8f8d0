"""What has to hold before a workload may start, capacity aside: jobs that have to end first, and times.

That a job has ended is recorded in the status of those that depend on it: it may be deleted before they start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.api.spec import DependencyStatus, QueueingStatus
from muster.api.spec.start import DependencyOutcome, JobDependency
from muster.workload import transitions
from muster.workload.conditions import CANCELLED, FAILED, has_terminated, with_status_fields

if TYPE_CHECKING:
    from muster.workload.observation import Observation
    from muster.workload.protocol import Transition, Workload

DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
_WANTED: Mapping[DependencyOutcome, str] = {
    "Succeeded": "has to succeed",
    "NotSucceeded": "has to fail or be cancelled",
    "Any": "has to end",
}


@dataclass(frozen=True, slots=True)
class StartConditions:
    """`singleton`: of the workloads of a namespace with this key, one after the other starts. `begin_at`, `deadline`:
    no start before and after, Unix seconds. `cancels_if_unsatisfiable`: it is cancelled once a job that it depends on
    has ended otherwise."""

    dependencies: tuple[JobDependency, ...] = ()
    singleton: str | None = None
    begin_at: float | None = None
    deadline: float | None = None
    cancels_if_unsatisfiable: bool = False


UNCONDITIONAL = StartConditions()


def ended_dependencies(status: QueueingStatus) -> dict[str, str]:
    """The recorded phase of each job that has ended, by name."""
    return {one.job: one.phase for one in status.dependencies}


def unsatisfiable_message(conditions: StartConditions, status: QueueingStatus) -> str | None:
    """The first dependency that has ended otherwise than it has to, as a sentence; None if there is none."""
    ended = ended_dependencies(status)
    for one in conditions.dependencies:
        if one.job in ended and not one.is_satisfied_by(ended[one.job]):
            return f"job {one.job} {_WANTED[one.outcome]} and has ended as {ended[one.job]}"
    return None


def check_start_conditions(workload: Workload, status: QueueingStatus, observation: Observation) -> Transition:
    """Of a workload that waits: record which jobs have ended, and end it if it can never start."""
    from muster.workload.protocol import Transition

    conditions, now = workload.start_conditions, observation.now
    if conditions is UNCONDITIONAL:
        return Transition(status)
    status = _with_ended(workload, status, observation)
    message = unsatisfiable_message(conditions, status)
    if message is not None and conditions.cancels_if_unsatisfiable:
        message = f"{message}; spec.cancelIfUnsatisfiable is true"
        return Transition(
            transitions.finish(status, CANCELLED, DEPENDENCY_NEVER_SATISFIED, message, now),
            ("Warning", DEPENDENCY_NEVER_SATISFIED, message),
        )
    has_run = status.started_at is not None or status.ran_seconds > 0
    if conditions.deadline is None or has_run:
        return Transition(status)
    if now < conditions.deadline:
        return Transition(status, wake_times=(conditions.deadline,))
    message = "had not started by its spec.startDeadline"
    return Transition(
        transitions.finish(status, FAILED, "StartDeadlineExceeded", message, now),
        ("Warning", "StartDeadlineExceeded", message),
    )


def _with_ended(workload: Workload, status: QueueingStatus, observation: Observation) -> QueueingStatus:
    namespace, recorded = workload.metadata.namespace or "default", ended_dependencies(status)
    fresh = []
    for one in workload.start_conditions.dependencies:
        other = None if one.job in recorded else observation.related.find(namespace, one.job)
        if other is not None and has_terminated(other.status):
            fresh.append(DependencyStatus.model_construct(job=one.job, phase=other.status.phase, at=observation.now))
    return with_status_fields(status, {"dependencies": [*status.dependencies, *fresh]}) if fresh else status
