"""Conversion of Queue objects to the quota tree of `muster.quota`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster import model
from muster.quantity import parse_quantity
from muster.quota import QueueTree, queue_tree
from muster.spec import FlavorQuota, Queue


def quota_tree(queues: Iterable[Queue]) -> QueueTree:
    """The quota tree of all queues, active or not; a queue in a cycle or with a missing parent is a root."""
    return queue_tree([
        model.QueueInfo(queue.metadata.name, queue.spec.parent, quotas=quotas_of(queue)) for queue in queues
    ])  # fmt: skip


def quotas_of(queue: Queue) -> tuple[model.Quota, ...]:
    """One quota for each flavor and resource. A flavor without amounts gets a quota of the resource "", so that the
    tree contains the flavor."""
    return tuple(quota for entry in queue.spec.resources for quota in _quotas(entry))


def _quotas(entry: FlavorQuota) -> list[model.Quota]:
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
