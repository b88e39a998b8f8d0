"""What objects show wrong together: an unknown queue, a cycle, a promise of more than there is.

A cluster accepts such objects and lets them wait with a reason that heals by itself, because the missing one may come
a moment later. A person at a terminal is told at once: `muster submit` and `muster apply` refuse the same things early.
Both read the rules here. Pure: objects in, verdicts or `Refused` out.
"""

from __future__ import annotations

from muster.admission.applying import check_apply, check_flavor_unused, check_no_children
from muster.admission.editing import being_deleted, check_edit, check_unfinished, ending, is_as_created, resumed_in_vain
from muster.admission.namespaces import namespace_allowed
from muster.admission.notices import apply_notices
from muster.admission.queues import QueueVerdict, queue_verdicts
from muster.admission.readable import check_readable, fault_around
from muster.admission.scaling import with_replicas
from muster.admission.size import check_size
from muster.admission.submitting import check_submit

__all__ = [
    "QueueVerdict",
    "apply_notices",
    "being_deleted",
    "check_apply",
    "check_edit",
    "check_flavor_unused",
    "check_no_children",
    "check_readable",
    "check_size",
    "check_submit",
    "check_unfinished",
    "ending",
    "fault_around",
    "is_as_created",
    "namespace_allowed",
    "queue_verdicts",
    "resumed_in_vain",
    "with_replicas",
]
