"""The queue tree as the planner sees it."""

from __future__ import annotations

from collections.abc import Mapping

from muster import model, spec
from muster.admission import QueueVerdict
from muster.quantity import parse_quantity


def to_queue(queue: spec.Queue, verdict: QueueVerdict) -> model.Queue:
    """One queue; an inactive one keeps its place in the tree, since what runs in it stays charged."""
    return model.Queue(
        name=queue.metadata.name,
        parent=queue.spec.parent,
        weight=queue.spec.weight,
        max_priority=queue.spec.max_priority,
        quotas=tuple(quota for entry in queue.spec.resources for quota in _quotas(entry)),
        active=verdict.active,
        inactive_reason="" if verdict.active else verdict.message,
    )


def _quotas(entry: spec.QueueResources) -> list[model.Quota]:
    """One quota a resource. A flavor without any is named all the same, by a resource that nobody asks for."""
    names = sorted({*entry.guaranteed, *entry.limit, *entry.lend}) or [""]
    return [
        model.Quota(
            flavor=entry.flavor,
            resource=name,
            guaranteed=_amount(entry.guaranteed, name),
            limit=_amount(entry.limit, name),
            lend=_amount(entry.lend, name),
        )
        for name in names
    ]


def _amount(amounts: Mapping[str, str], name: str) -> int | None:
    return parse_quantity(amounts[name], name) if name in amounts else None
