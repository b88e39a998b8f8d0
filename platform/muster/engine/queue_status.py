"""Conditions of queues and flavors, and fair-share usage in queue statuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from muster.api import spec
from muster.api.quantity import format_quantity
from muster.api.validation import QueueReadiness
from muster.cluster import WriteFlavorStatus, WriteQueueStatus
from muster.lifecycle.conditions import with_condition
from muster.scheduling import PlannerCache
from muster.state.fair_share import FairShare


def guarantees_exceeding_nodes(cache: PlannerCache) -> dict[str, str]:
    """By queue, a sentence if it is guaranteed more than all nodes of a flavor have."""
    table, found = cache.table, dict[str, str]()
    for queue in cache.tree.queues:
        for quota in queue.quotas:
            span, column = table.flavors.get(quota.flavor), table.columns.get(quota.resource)
            if span is None or not quota.guaranteed:
                continue
            has = 0.0 if column is None else table.allocatable[span.start : span.stop, column].sum(dtype=np.float64)
            if quota.guaranteed > has:
                amount = f"{format_quantity(quota.guaranteed, quota.resource)} {quota.resource} of {quota.flavor}"
                found.setdefault(queue.name, f"{amount} are guaranteed, more than all nodes of that flavor have")
    return found


def queue_status_writes(
    queues: Iterable[spec.Queue],
    readiness: Mapping[str, QueueReadiness],
    exceeding: Mapping[str, str],
    fair_share_usage: FairShare,
    now: float,
    refresh_s: float,
) -> list[WriteQueueStatus]:
    """Active and Overcommitted at once when they change, fair-share usage at most every `refresh_s`."""
    writes = []
    for queue in queues:
        ready, generation = readiness[queue.metadata.name], queue.metadata.generation
        conditions = queue.status.conditions
        conditions = with_condition(conditions, "Active", ready.active, ready.reason, ready.message, now, generation)
        over, reason = ready.overcommitted_message, "ChildrenExceedGuarantee"
        if over is None:
            over = exceeding.get(queue.metadata.name)
            reason = "WithinGuarantee" if over is None else "ExceedsNodes"
        conditions = with_condition(conditions, "Overcommitted", over is not None, reason, over or "", now, generation)
        fair_share = queue.status.fair_share
        if now >= (0.0 if fair_share is None else fair_share.at) + refresh_s:
            fair_share = fair_share_usage.status(queue.metadata.name, now) or fair_share
        if conditions is not queue.status.conditions or fair_share is not queue.status.fair_share:
            status = queue.status.model_copy(update={"conditions": conditions, "fair_share": fair_share})
            writes.append(WriteQueueStatus(queue.metadata.name, status))
    return writes


def flavor_status_writes(
    flavors: Iterable[spec.Flavor], overlaps: Mapping[str, str], now: float
) -> list[WriteFlavorStatus]:
    """Overlapping, with the nodes that the flavor loses because another one matches them too."""
    writes = []
    for flavor in flavors:
        message = overlaps.get(flavor.metadata.name)
        reason = "NoOverlap" if message is None else "NodesMatchTwoFlavors"
        old = flavor.status.conditions
        new = with_condition(
            old, "Overlapping", message is not None, reason, message or "", now, flavor.metadata.generation
        )
        if new is not old:
            writes.append(WriteFlavorStatus(flavor.metadata.name, flavor.status.model_copy(update={"conditions": new})))
    return writes
