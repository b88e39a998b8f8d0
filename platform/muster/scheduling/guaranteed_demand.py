"""Whether a claim of a gang that has to borrow can come true beside gangs within their guarantee.

Those go first: whatever becomes free of their queues' guarantees, the gangs that wait for it take at once. A claim on
that quota would never come true, and would only keep other gangs from borrowing what is idle meanwhile. So a claim
counts only if the gang is within quota beside what queues will use of their guarantees once all running gangs have
ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.quota import UNLIMITED
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.planner_cache import PlannerCache, add_demand


@dataclass(frozen=True, slots=True)
class _CellDemand:
    """What waiting gangs will take of one cell, by queue. Usage of a queue is counted as in `muster.quota`."""

    subtree: list[int]  # in and below the queue
    usage: list[int]
    below: list[int]  # sum of `subtree` over the children: without what may be taken anywhere below the queue
    usage_below: list[int]  # the same of `usage`


@dataclass(slots=True)
class GuaranteedDemand:
    """The demand of gangs that wait within the guarantee of a queue on their path, as the plan goes on."""

    cache: PlannerCache
    admissions: Mapping[str, object]  # of this plan, by uid
    _admitted: set[str] = field(default_factory=set)  # uids that are taken off the demand
    _demand: dict[tuple[int, int], int] | None = None
    _cells: dict[int, _CellDemand] = field(default_factory=dict)
    _lasting: dict[tuple[QueueRequest, int], bool] = field(default_factory=dict)
    _passed: dict[QueueRequest, bool] = field(default_factory=dict)

    def is_lasting(self, request: QueueRequest, option: int) -> bool:
        """Whether a claim in this option can come true. Always within the leaf's guarantee."""
        if request.coverable_guarantees[option] & 1:
            return True
        known = self._lasting.get((request, option))
        if known is None:
            known = self._fits(request, option)
            if not known and self._admitted != self.admissions.keys():
                self._take_off_admitted()  # these gangs do not wait any more
                known = self._fits(request, option)
            self._lasting[request, option] = known
        return known

    def is_passed(self, request: QueueRequest) -> bool:
        """Whether gangs within their guarantees pass such a gang: no claim of it can come true."""
        known = self._passed.get(request)  # hot path
        if known is None:
            known = self._passed[request] = self._is_passed(request)
        return known

    def _is_passed(self, request: QueueRequest) -> bool:
        for guarantees in request.coverable_guarantees:  # most gangs are within their leaf's guarantee
            if guarantees & 1:
                return False
        return not any(self.is_lasting(request, option) for option in range(len(request.min_quota)))

    def _fits(self, request: QueueRequest, option: int) -> bool:
        if self._demand is None:
            self._demand = dict(self.cache.demand)
            self._take_off_admitted()
        return all(amount <= self._available(request.queue, cell) for cell, amount in request.min_quota[option])

    def _take_off_admitted(self) -> None:
        """Reduce the demand to that of gangs that still wait."""
        assert self._demand is not None
        admitted, cache = self.admissions.keys(), self.cache
        for changed, sign in ((admitted - self._admitted, -1), (self._admitted - admitted, 1)):
            for uid in changed:
                add_demand(self._demand, cache.tree, cache.pending[uid].request, sign)
        self._admitted, self._cells = set(admitted), {}

    def _available(self, queue: int, cell: int) -> int:
        """What the queue may use beside the demand. On its own path only its leaf's guarantee counts: above that other
        gangs of the path have no better right."""
        if cell not in self._cells:
            self._cells[cell] = self._demand_of_cell(cell)
        tree, demand = self.cache.tree, self._cells[cell]
        below, subtree, usage = queue, demand.subtree[queue], demand.usage[queue]
        slack = [(tree.local_quota[queue][cell] - usage, tree.limit[queue][cell] - subtree)]
        for above in tree.path[queue][1:]:
            kept = tree.local_quota[below][cell]
            usage = demand.usage_below[above] - max(0, demand.usage[below] - kept) + max(0, usage - kept)
            subtree += demand.below[above] - demand.subtree[below]
            quota = tree.subtree_quota if tree.parent[above] < 0 else tree.local_quota
            slack.append((quota[above][cell] - usage, tree.limit[above][cell] - subtree))
            below = above
        available, cap = 0, UNLIMITED
        for position, (spare, limit) in enumerate(reversed(slack)):
            available += spare if position == 0 else max(0, spare)
            cap = min(cap, limit)
            available = min(available, cap)
        return available

    def _demand_of_cell(self, cell: int) -> _CellDemand:
        assert self._demand is not None
        tree, count = self.cache.tree, len(self.cache.tree.queues)
        demand = _CellDemand([0] * count, [0] * count, [0] * count, [0] * count)
        for queue in tree.bottom_up:
            wanted = min(tree.guaranteed[queue][cell], self._demand.get((queue, cell), 0))
            more = max(0, wanted - demand.below[queue])
            demand.subtree[queue] = demand.below[queue] + more
            demand.usage[queue] = demand.usage_below[queue] + more
            above = tree.parent[queue]
            if above >= 0:
                demand.below[above] += demand.subtree[queue]
                demand.usage_below[above] += max(0, demand.usage[queue] - tree.local_quota[queue][cell])
        return demand
