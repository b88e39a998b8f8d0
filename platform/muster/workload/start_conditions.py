"""What has to hold before a workload may start, capacity aside: jobs that have to end first, and times.

That a job has ended is recorded in the status of those that depend on it: it may be deleted before they start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.api.spec import QueueingStatus
from muster.api.spec.start import DependencyOutcome, JobDependency

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
