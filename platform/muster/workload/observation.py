"""What a reconciliation of one workload reads and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.api.spec import DEFAULT_MAX_GRACE_PERIOD_S, Flavor, QueueingStatus
from muster.cluster import Heartbeat, NodeView, PodView, Write
from muster.workload.related import RelatedWorkloads

ACTIVE_POD_PHASES = frozenset({"Pending", "Running", "Lost"})
"""Phases in which a pod takes capacity."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed of a workload. `nodes` is by name; `queue_deleted`: its queue is being deleted; `max_grace_s`:
    the longest grace period that its queue allows; `flavors` is by name."""

    now: float
    pods: tuple[PodView, ...] = ()
    heartbeat: Heartbeat | None = None
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    queue_deleted: bool = False
    max_grace_s: float = DEFAULT_MAX_GRACE_PERIOD_S
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    related: RelatedWorkloads = field(default_factory=RelatedWorkloads)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The new status (the same object if nothing changed) and, once that is written, what to do in order.
    `wake_at`: when to reconcile again although nothing changed; None if only a change can matter."""

    status: QueueingStatus
    writes: tuple[Write, ...] = ()
    wake_at: float | None = None


def pods_left(pods: Iterable[PodView]) -> str:
    """`pod a-trainer-0-1a2b3 on n1 and 2 more pods have`: those that take capacity, as subject and auxiliary verb; ""
    if none does."""
    left = sorted((pod for pod in pods if pod.holds_capacity), key=lambda pod: pod.name)
    if not left:
        return ""
    more = f" and {len(left) - 1} more pod{'s' * (len(left) > 2)} have" if len(left) > 1 else " has"
    return f"pod {left[0].name} on {left[0].node or 'no node'}{more}"
