"""Input and output of the lifecycle, and its timeouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.api.spec import DEFAULT_MAX_GRACE_PERIOD_S, TrainingJob, TrainingJobStatus
from muster.backoff import backoff_s
from muster.cluster import Heartbeat, NodeView, PodView, Write

ACTIVE_POD_PHASES = frozenset({"Pending", "Running", "Lost"})
"""Phases in which a pod takes capacity."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed of a job. `nodes` is by name; `queue_deleted`: its queue is being deleted; `max_grace_s`: the
    longest grace period that its queue allows."""

    now: float
    pods: tuple[PodView, ...] = ()
    heartbeat: Heartbeat | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queue_deleted: bool = False
    max_grace_s: float = DEFAULT_MAX_GRACE_PERIOD_S


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The job's new status (the same object if nothing changed) and, once that is written, what to do in order.
    `wake_at`: when to reconcile again although nothing changed; None if only a change can matter."""

    status: TrainingJobStatus
    writes: tuple[Write, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times in seconds; the defaults are documented. A restart waits `backoff_s`, doubled with each further one up to
    `backoff_max_s`."""

    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    max_node_losses: int = 10  # per job; one more fails it
    force_delete_after_s: float = 300.0  # a node unknown for this long is lost, its pods are ignored
    blame_ttl_s: float = 3600.0  # a job excludes a node after a failure for this long
    max_blamed_nodes: int = 10
    sandbox_timeout_s: float = 60.0  # by then any healthy node has created the sandbox of a pod
    checkpoint_refresh_s: float = 60.0  # the newest checkpoint is written to the status at most this often
    progress_refresh_s: float | None = None  # progress is written to the status at most this often; None: never
    finished_pods_delay_s: float = 5.0  # delay until completed pods of a running gang are recorded
    log_tail_bytes: int = 4096

    def backoff(self, restarts: int) -> float:
        """Seconds before restart number `restarts` (1 is the first); 0 for none."""
        return backoff_s(restarts, self.backoff_s, self.backoff_max_s)


def pods_left(pods: Iterable[PodView]) -> str:
    """`pod a-trainer-0-1a2b3 on n1 and 2 more pods have`: those that take capacity, as subject and auxiliary verb; ""
    if none does."""
    left = sorted((pod for pod in pods if pod.holds_capacity), key=lambda pod: pod.name)
    if not left:
        return ""
    more = f" and {len(left) - 1} more pod{'s' * (len(left) > 2)} have" if len(left) > 1 else " has"
    return f"pod {left[0].name} on {left[0].node or 'no node'}{more}"


def role_grace_period_s(job: TrainingJob, role: str, limit_s: float) -> float:
    """Seconds between SIGTERM and SIGKILL for pods of the role, at most `limit_s`, the limit of its queue; the longest
    of all roles for a role that was removed."""
    for part in job.spec.roles:
        if part.name == role:
            return min(float(part.template.spec.termination_grace_period_seconds), limit_s)
    return max_grace_period_s(job, limit_s)


def max_grace_period_s(job: TrainingJob, limit_s: float) -> float:
    """The longest grace period of any role, in seconds, at most `limit_s`, the limit of its queue."""
    longest = max(part.template.spec.termination_grace_period_seconds for part in job.spec.roles)
    return min(float(longest), limit_s)
