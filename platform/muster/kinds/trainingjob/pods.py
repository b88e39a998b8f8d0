"""The pods of a TrainingJob: their names, how long they may take to stop, and whether a placement is still allowed.

A pod's name is derived from the job's name and uid, the role, the index and the attempt, so that creating it twice is
detected, and a pod of an older attempt is never taken for a new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from muster.api.spec import RolePlacementStatus, TrainingJob, TrainingJobSpec
from muster.workload.placement import from_status


def pod_name(job_name: str, uid: str, role: str, index: int, attempt: int) -> str:
    """`<job>-<role>-<index>-<hash5(uid, attempt)>`."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job_name}-{role}-{index}-{digest}"


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


def matches_spec(placement: Iterable[RolePlacementStatus], spec: TrainingJobSpec) -> bool:
    """Whether the spec still has every role of a placement, allows as many pods, and allows that flavor."""
    roles = {role.name: role for role in spec.roles}
    for part in from_status(placement):
        role = roles.get(part.role)
        if role is None or part.replicas > spec.max_replicas(role):
            return False
        flavors = role.flavors or spec.flavors
        if flavors and part.flavor not in flavors:
            return False
    return True
