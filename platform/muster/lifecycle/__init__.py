"""What becomes of a gang, from its first submission to its removal.

Pure: from a job, what can be seen of it, and the time, to its next status and what to do. Every cluster shares it, so
that a job behaves the same on this host, in a simulation and on Kubernetes. `live` tells the story; `moves` are the
writes it is made of.
"""

from __future__ import annotations

from muster.lifecycle.bounds import Bounds
from muster.lifecycle.conditions import (
    find,
    has_ended,
    is_admitted,
    is_finished,
    is_leaving,
    is_true,
    phase_of,
    set_condition,
)
from muster.lifecycle.keeping import kept_places, kept_until
from muster.lifecycle.live import live
from muster.lifecycle.places import from_status, pod_name, seats, to_status
from muster.lifecycle.sight import LIVE_PHASES, Sight, Verdict, max_grace, role_grace

__all__ = [
    "LIVE_PHASES",
    "Bounds",
    "Sight",
    "Verdict",
    "find",
    "from_status",
    "has_ended",
    "is_admitted",
    "is_finished",
    "is_leaving",
    "is_true",
    "kept_places",
    "kept_until",
    "live",
    "max_grace",
    "phase_of",
    "pod_name",
    "role_grace",
    "seats",
    "set_condition",
    "to_status",
]
