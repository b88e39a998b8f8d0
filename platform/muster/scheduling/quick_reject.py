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
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.preemption_candidates import PreemptionCandidates

MISSES_BEFORE_BATCH = 8
"""This many gangs in a row are checked one by one before the batch check."""


@dataclass(slots=True)
class QuickReject:
    """The check, computed in a batch when that is faster."""

    cache: PlannerCache
    ledger: Ledger
    candidates: PreemptionCandidates
    _requests: RequestArrays = field(init=False)
    _version: int = -1
    _misses: int = 0
    _last_gang: Gang | None = None  # two rejections in a row at the same version of the ledger count once
    _last_version: int = -1
    _reasons: list[UnschedulableReason | None] = field(
        default_factory=list
    )  # by number of the request, if no gang of its leaf can be preempted

    def __post_init__(self) -> None:
        self._requests = self.cache.request_cache.as_arrays()

    def reason(self, gang: Gang, request: QueueRequest) -> UnschedulableReason | None:
        """Why a gang waits, if it needs no trial."""
        if self._version != self.ledger.version:
            if self._misses < MISSES_BEFORE_BATCH:
                if self._last_gang is not gang or self._last_version != self.ledger.version:
                    self._last_gang, self._last_version = gang, self.ledger.version
                    self._misses += 1
                return None
            self._compute()
        number = self._requests.index.get(request)
        if number is None or (why := self._reasons[number]) is None:
            return None
        return None if self.candidates.lower_priority(request.queue, gang.priority) else why

    def on_capacity_changed(self) -> None:
        """A gang was admitted, or victims were evicted for one."""
        self._misses = 0

    def _compute(self) -> None:
        self._version = self.ledger.version
        arrays = self._requests
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
        self._reasons = [reasons[i] for i in which.tolist()]

    def _may_reclaim(self) -> BoolArray:
        """Requests within a guarantee of their path, while some queue is above its own."""
        arrays, tree, usage = self._requests, self.cache.tree, self.ledger.usage_later
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
