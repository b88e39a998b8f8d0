"""What becomes of a gang, from its first submission to its removal.

Pure: from a job, what can be seen of it, and the time, to its next status and what to do. Every cluster shares it, so
that a job behaves the same on this host, in a simulation and on Kubernetes. `live` tells the story; `moves` are the
writes it is made of.
"""

from __future__ import annotations

from muster.lifecycle.timeouts import Timeouts
from muster.lifecycle.conditions import (
    find_condition,
    has_terminated,
    is_admitted,
    is_finished,
    is_evicting,
    is_condition_true,
    phase_of,
    set_condition,
)
from muster.lifecycle.retention import retained_placement, retained_until
from muster.lifecycle.reconcile import reconcile_job
from muster.lifecycle.placement import from_status, pod_name, pod_slots, to_status
from muster.lifecycle.observation import ACTIVE_POD_PHASES, Observation, ReconcileResult, max_grace_period_s, role_grace_period_s

__all__ = [
    "ACTIVE_POD_PHASES",
    "Timeouts",
    "Observation",
    "ReconcileResult",
    "find_condition",
    "from_status",
    "has_terminated",
    "is_admitted",
    "is_finished",
    "is_evicting",
    "is_condition_true",
    "retained_placement",
    "retained_until",
    "reconcile_job",
    "max_grace_period_s",
    "phase_of",
    "pod_name",
    "role_grace_period_s",
    "pod_slots",
    "set_condition",
    "to_status",
]
