"""Input and output of the lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.cluster import Heartbeat, NodeView, PodView, Write
from muster.spec import TrainingJob, TrainingJobStatus

ACTIVE_POD_PHASES = frozenset({"Pending", "Running", "Lost"})
"""Phases in which a pod takes capacity."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed of a job. `nodes` is by name; `queue_deleted`: its queue is being deleted."""

    now: float
    pods: tuple[PodView, ...] = ()
    heartbeat: Heartbeat | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queue_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The job's new status (the same object if nothing changed) and, once that is written, what to do in order.
    `wake_at`: when to reconcile again although nothing changed; None if only a change can matter."""

    status: TrainingJobStatus
    writes: tuple[Write, ...] = ()
    wake_at: float | None = None


def role_grace_period_s(job: TrainingJob, role: str) -> float:
    """Seconds between SIGTERM and SIGKILL for pods of the role; the longest of all roles for a role that was
    removed."""
    for part in job.spec.roles:
        if part.name == role:
            return float(part.template.spec.termination_grace_period_seconds)
    return max_grace_period_s(job)


def max_grace_period_s(job: TrainingJob) -> float:
    """The longest grace period of any role, in seconds."""
    return float(max(part.template.spec.termination_grace_period_seconds for part in job.spec.roles))
