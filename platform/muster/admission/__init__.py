"""What objects show wrong together: an unknown queue, a cycle, a promise of more than there is.

A cluster accepts such objects and lets them wait with a reason that heals by itself, because the missing one may come
a moment later. A person at a terminal is told at once: `muster submit` and `muster apply` refuse the same things early.
Both read the rules here. Pure: objects in, verdicts or `Refused` out.
"""

from __future__ import annotations

from muster.admission.applying import check_apply, check_flavor_unused, check_no_children
from muster.admission.editing import being_deleted_conflict, check_edit, check_unfinished, final_phase, keeps_pods, resumed_in_vain
from muster.admission.namespaces import namespace_allowed
from muster.admission.notices import apply_warnings
from muster.admission.queues import QueueReadiness, queue_readiness
from muster.admission.readable import check_dependencies_valid, invalid_dependency
from muster.admission.scaling import with_replicas
from muster.admission.size import check_size
from muster.admission.submitting import check_submit

__all__ = [
    "QueueReadiness",
    "apply_warnings",
    "being_deleted_conflict",
    "check_apply",
    "check_edit",
    "check_flavor_unused",
    "check_no_children",
    "check_dependencies_valid",
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
