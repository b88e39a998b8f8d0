"""Rejects pending gangs that need no trial: quota or capacity is short, and no gang may be preempted for them.

In most plans most pending gangs are of that kind. For all requests at once the check is a few array operations. The
result holds while the ledger does not change; afterwards it is computed again only after some gangs in a row were
rejected, since where one gang starts the next may start as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from muster.model import Gang
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.feasibility import UnschedulableReason, unschedulable_reason
from muster.scheduling.fit import fits
from muster.scheduling.gang_requests import QueueRequest, RequestArrays
from muster.scheduling.ledger import Ledger
from muster.scheduling.nodes import BoolArray
from muster.scheduling.preemption_candidates import PreemptionCandidates
from muster.scheduling.versioned_cache import VersionedCache

MISSES_BEFORE_BATCH = 8
"""This many gangs in a row are checked one by one before the batch check."""


@dataclass(slots=True)
class QuickReject:
    """The check, computed in a batch when that is faster."""

    requests: RequestArrays  # all requests with a single option
    ledger: Ledger
    candidates: PreemptionCandidates
    _reasons: VersionedCache[QueueRequest, UnschedulableReason | None] = field(default_factory=VersionedCache)
    _misses: int = 0
    _last_miss: tuple[Gang, int] | None = (
        None  # the gang and the ledger's version: asked twice in a row, it counts once
    )

    def reason(self, gang: Gang, request: QueueRequest) -> UnschedulableReason | None:
        """Why a gang waits, if it needs no trial."""
        version = self.ledger.version
        reasons = self._reasons.at(version)
        if not reasons and self.requests.index:
            if self._misses < MISSES_BEFORE_BATCH:
                if self._last_miss is None or self._last_miss[0] is not gang or self._last_miss[1] != version:
                    self._last_miss = gang, version
                    self._misses += 1
                return None
            reasons.update(zip(self.requests.index, self._compute(), strict=True))
        why = reasons.get(request)
        if why is None or self.candidates.lower_priority(request.queue, gang.priority):
            return None
        return why

    def on_capacity_changed(self) -> None:
        """A gang was admitted, or victims were evicted for one."""
        self._misses = 0

    def _compute(self) -> list[UnschedulableReason | None]:
        """The reason of each request, if no gang of its leaf can be preempted."""
        arrays = self.requests
        avail = self.ledger.usage_now.available_table()
        asks = arrays.amounts > 0
        over = np.any(asks & (arrays.amounts > avail[arrays.queue]), axis=1)
        full = _without_capacity(arrays, self.ledger.free_now)[arrays.option]
        domain = _needs_domain(arrays)[arrays.option]
        which = np.select([~(over | full) | self._may_reclaim(), over, domain], [0, 1, 2], 3)
        reasons = (
            None,
            unschedulable_reason("QuotaExceeded"),
            unschedulable_reason("TopologyUnsatisfiable"),
            unschedulable_reason("InsufficientResources"),
        )
        return [reasons[i] for i in which.tolist()]

    def _may_reclaim(self) -> BoolArray:
        """Requests within a guarantee of their path, while some queue is above its own."""
        arrays, usage = self.requests, self.ledger.usage_later
        tree = usage.tree
        above = self.candidates.queues_above_guarantee(
            frozenset(range(len(tree.cell_index))), usage, self.ledger.version
        )
        generous = np.array([queue in above for queue in range(len(tree.queues))] + [False])
        slack = tree.guaranteed_table - usage.table()
        queue, answer = arrays.queue, np.zeros(len(arrays.queue), dtype=np.bool_)
        parent = np.array(tree.parent, dtype=np.int64)
        while (inner := parent[queue] >= 0).any():
            within = np.all((arrays.amounts == 0) | (arrays.amounts <= slack[queue]), axis=1)
            answer |= within & inner & generous[parent[queue]]
            queue = np.where(inner, parent[queue], queue)
        return answer


def _without_capacity(requests: RequestArrays, free_now: FreeCapacity) -> BoolArray:
    """Options whose minimum does not fit now."""
    table = free_now.table
    pairs = zip(requests.options, requests.sizes, strict=True)
    full: BoolArray = np.array([not fits(table, option, sizes, free_now) for option, sizes in pairs], dtype=np.bool_)
    return full


def _needs_domain(requests: RequestArrays) -> BoolArray:
    """Options with a required domain."""
    inside = [any(group.required is not None for group in option.groups) for option in requests.options]
    return np.array(inside, dtype=np.bool_)
