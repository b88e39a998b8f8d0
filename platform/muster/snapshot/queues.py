"""The queue tree as the planner sees it."""

from __future__ import annotations

from muster import model, spec
from muster.validation import QueueReadiness
from muster.validation.quota_tree import quotas_of


def to_queue(queue: spec.Queue, verdict: QueueReadiness) -> model.QueueInfo:
    """One queue; an inactive one stays in the tree, since its running jobs are still charged."""
    return model.QueueInfo(
        name=queue.metadata.name,
        parent=queue.spec.parent,
        weight=queue.spec.weight,
        max_priority=queue.spec.max_priority,
        quotas=quotas_of(queue),
        active=verdict.active,
        inactive_reason="" if verdict.active else verdict.message,
    )
