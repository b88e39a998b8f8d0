"""Validation of relations between objects: unknown queues, cycles, overcommitted quota, jobs larger than the quota.

A cluster accepts such objects, because the missing one may be created later, and shows the reason in their conditions.
`muster apply` refuses them before it writes, `muster submit` does so with jobs (`muster.kinds.trainingjob.submit`).
Pure functions of objects.
"""

from __future__ import annotations

from muster.api.validation.apply import apply_warnings, check_apply, check_flavor_unused, check_no_children
from muster.api.validation.edit import (
    already_exists_conflict,
    being_deleted_conflict,
    check_edit,
    check_unfinished,
    resumed_in_vain,
    with_replicas,
)
from muster.api.validation.queues import (
    QueueReadiness,
    namespace_allowed,
    nearest_pod_security,
    queue_max_grace_period_s,
    queue_readiness,
)
from muster.api.validation.size import check_size

__all__ = [
    "QueueReadiness",
    "already_exists_conflict",
    "apply_warnings",
    "being_deleted_conflict",
    "check_apply",
    "check_edit",
    "check_flavor_unused",
    "check_no_children",
    "check_size",
    "check_unfinished",
    "namespace_allowed",
    "nearest_pod_security",
    "queue_max_grace_period_s",
    "queue_readiness",
    "resumed_in_vain",
    "with_replicas",
]
