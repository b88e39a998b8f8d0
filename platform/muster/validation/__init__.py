"""What objects show wrong together: an unknown queue, a cycle, a promise of more than there is.

A cluster accepts such objects and lets them wait with a reason that heals by itself, because the missing one may come
a moment later. A person at a terminal is told at once: `muster submit` and `muster apply` refuse the same things early.
Both read the rules here. Pure: objects in, verdicts or `Refused` out.
"""

from __future__ import annotations

from muster.validation.apply import check_apply, check_flavor_unused, check_no_children
from muster.validation.dependencies import check_dependencies_valid, invalid_dependency
from muster.validation.edit import (
    being_deleted_conflict,
    check_edit,
    check_unfinished,
    final_phase,
    keeps_pods,
    resumed_in_vain,
)
from muster.validation.namespaces import namespace_allowed
from muster.validation.queue_readiness import QueueReadiness, queue_readiness
from muster.validation.scale import with_replicas
from muster.validation.size import check_size
from muster.validation.submit import check_submit
from muster.validation.warnings import apply_warnings

__all__ = [
    "QueueReadiness",
    "apply_warnings",
    "being_deleted_conflict",
    "check_apply",
    "check_dependencies_valid",
    "check_edit",
    "check_flavor_unused",
    "check_no_children",
    "check_size",
    "check_submit",
    "check_unfinished",
    "final_phase",
    "invalid_dependency",
    "keeps_pods",
    "namespace_allowed",
    "queue_readiness",
    "resumed_in_vain",
    "with_replicas",
]
