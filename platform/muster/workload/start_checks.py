"""What becomes of a workload that waits for others or for a time: what has ended is recorded, and one that can never
start is ended."""

from __future__ import annotations

from muster.api.spec import DependencyStatus, QueueingStatus
from muster.workload import transitions
from muster.workload.conditions import CANCELLED, FAILED, has_terminated, with_status_fields
from muster.workload.observation import Observation
from muster.workload.protocol import Transition, Workload
from muster.workload.start_conditions import UNCONDITIONAL, ended_dependencies, unsatisfiable_message

DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"


def check_start_conditions(workload: Workload, status: QueueingStatus, observation: Observation) -> Transition:
    """Of a workload that waits: record which jobs have ended, and end it if it can never start."""
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
