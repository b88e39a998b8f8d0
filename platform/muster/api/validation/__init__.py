"""Validation of relations between objects: unknown queues, cycles, overcommitted quota, jobs larger than the quota.

A cluster accepts such objects, because the missing one may be created later, and shows the reason in their conditions.
`muster submit` and `muster apply` refuse them before they write. Both use the rules here. Pure functions of objects.
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
from muster.api.validation.submit import check_depends_on, check_pod_security, check_submit

__all__ = [
    "QueueReadiness",
    "already_exists_conflict",
    "apply_warnings",
    "being_deleted_conflict",
    "check_apply",
    "check_depends_on",
    "check_edit",
    "check_flavor_unused",
    "check_no_children",
    "check_pod_security",
    "check_size",
    "check_submit",
    "check_unfinished",
    "namespace_allowed",
    "nearest_pod_security",
    "queue_max_grace_period_s",
    "queue_readiness",
    "resumed_in_vain",
    "with_replicas",
]
