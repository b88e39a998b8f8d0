"""What the lifecycle can see of a job, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.cluster import Heartbeat, NodeView, PodView, Write
from muster.spec import TrainingJob, TrainingJobStatus

ACTIVE_POD_PHASES = frozenset({"Pending", "Running", "Lost"})
"""Phases in which a pod takes up room."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What can be seen of a job from outside. `nodes` is by name; `queue_deleted`: its queue is being deleted."""

    now: float
    pods: tuple[PodView, ...] = ()
    heartbeat: Heartbeat | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queue_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The job's new status (the same object when nothing changed) and, once that is written, what to do in order.

    `wake_at`: when to ask again although nothing changed; None when only a change can matter.
    """

    status: TrainingJobStatus
    writes: tuple[Write, ...] = ()
    wake_at: float | None = None


def role_grace_period_s(job: TrainingJob, role: str) -> float:
    """Seconds between SIGTERM and SIGKILL for pods of the role; the longest of all for a role that is no more."""
    for part in job.spec.roles:
        if part.name == role:
            return float(part.template.spec.termination_grace_period_seconds)
    return max_grace_period_s(job)


def max_grace_period_s(job: TrainingJob) -> float:
    """The longest grace of any role, in seconds."""
    return float(max(part.template.spec.termination_grace_period_seconds for part in job.spec.roles))
