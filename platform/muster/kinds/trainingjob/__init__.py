"""The lifecycle of a job, from its first submission to its removal.

Pure: from a job, its observation and the time to its next status and writes. Every cluster shares it, so that a job
behaves the same on this host, in a simulation and on Kubernetes. `reconcile` has the steps; `transitions` the status
changes they are made of.
"""

from __future__ import annotations

from muster.lifecycle.conditions import (
    find_condition,
    has_terminated,
    is_admitted,
    is_condition_true,
    is_evicting,
    is_finished,
    set_condition,
)
from muster.lifecycle.observation import (
    ACTIVE_POD_PHASES,
    Observation,
    ReconcileResult,
    Timeouts,
    max_grace_period_s,
)
from muster.lifecycle.placement import ended_pods, from_status, held_placement, nodes_of, pod_name, pod_slots
from muster.lifecycle.reconcile import reconcile_job
from muster.lifecycle.transitions import retained_placement, retained_until

__all__ = [
    "ACTIVE_POD_PHASES",
    "Observation",
    "ReconcileResult",
    "Timeouts",
    "ended_pods",
    "find_condition",
    "from_status",
    "has_terminated",
    "held_placement",
    "is_admitted",
    "is_condition_true",
    "is_evicting",
    "is_finished",
    "max_grace_period_s",
    "nodes_of",
    "pod_name",
    "pod_slots",
    "reconcile_job",
    "retained_placement",
    "retained_until",
    "set_condition",
]
