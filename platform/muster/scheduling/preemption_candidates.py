"""Which gangs a gang may preempt, and in what order.

Inside a leaf a strictly higher priority preempts. Across queues a gang within a guarantee on its path reclaims what
others use above their guarantees, whatever their priority. Of the candidates, elastic gangs shrink first, then the
lowest priority is evicted, then the least lost work (in steps of a tenth of its limit), the fewest evictions in the
last hour, the newest, by uid. A gang admitted in the same plan is a candidate too: it has no lost work and is the
newest.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from muster.model import Gang, Placement, RolePlacement
from muster.quota import QueueTree, QuotaUsage
from muster.scheduling.borrowing_heads import due_at, is_protected
from muster.scheduling.capacity import NodeUsage
from muster.scheduling.eviction_limits import exempt_until, is_limit_reached, recent_evictions
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.nodes import BoolArray
from muster.scheduling.nominations import ActiveNomination
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.releases import ExpectedRelease, GangUsage, node_usage_of_placement, quota_of_placement
from muster.scheduling.versioned_cache import VersionedCache

MAX_LOST_WORK_S = 1800.0
"""Lost work counts at most this many seconds per pod, so a gang without checkpoints can be preempted too."""
_LOST_WORK_STEP_S = MAX_LOST_WORK_S / 10
"""Gangs that lose about the same are equal, so that evictions in the last hour count: exact seconds never are."""

NO_PRIORITY = np.iinfo(np.int64).max

PreemptionReason = Literal["Reclaimed", "Preempted"]


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A gang that is evicted, shrinks to `remaining`, or, if `gang_usage` is None, loses its nomination or its
    admission in this plan; `freed` is what it gives up. `protected`: it may not be reclaimed, only shrunk. `exempt`:
    not even that, within the minimum run time of its queue."""

    gang: Gang
    freed: ExpectedRelease
    gang_usage: GangUsage | None
    remaining: Placement
    lost_work_s: float
    key: tuple[bool, int, int, int, float, int, str]
    protected: bool = False
    exempt: bool = False
    evictions: tuple[str, ...] = ()  # see `recent_evictions`


Preemptible: TypeAlias = GangUsage | ActiveNomination | Victim
"""Candidates: running gangs, nominations, or (as victims already) admissions of this plan."""


@dataclass(frozen=True, slots=True)
class PreemptionRights:
    """What a gang may preempt in one of its options, with the current usage; changes with each victim."""

    gang: Gang
    queue: int
    tree: QueueTree
    usage_later: QuotaUsage
    cells: frozenset[int]
    guaranteed: frozenset[int]  # queues on its path, without the root, that stay within their guarantee with it

    @classmethod
    def of(
        cls, gang: Gang, request: QueueRequest, option: int, usage_later: QuotaUsage, covered: int
    ) -> PreemptionRights:
        """The rights of a gang that is within some guarantees of its path (see `GuaranteeEligibility`)."""
        path = usage_later.tree.path[request.queue]
        guaranteed = frozenset(q for position, q in enumerate(path[:-1]) if covered >> position & 1)
        cells = frozenset(cell for cell, _ in request.min_quota[option])
        return cls(gang, request.queue, usage_later.tree, usage_later, cells, guaranteed)

    @property
    def is_empty(self) -> bool:
        """Whether it may preempt no gang of another queue."""
        return not self.guaranteed

    def reason_for(self, victim: Victim) -> PreemptionReason | None:
        """The reason for which it may preempt a gang; None: it may not."""
        limited = is_limit_reached(self.tree, victim.evictions, victim.freed.queue, self.queue)
        if victim.exempt or (limited and not victim.remaining):
            return None
        if victim.freed.queue == self.queue:
            return "Preempted" if victim.gang.priority < self.gang.priority else None
        if victim.protected and not victim.remaining:
            return None
        cells = self.cells.intersection(cell for cell, _ in victim.freed.amounts)
        return "Reclaimed" if self.may_reclaim(victim.freed.queue, cells) else None

    def may_reclaim(self, queue: int, cells: Collection[int]) -> bool:
        """Whether the gang may reclaim these cells from a queue: every queue from that one up to below the common
        ancestor is above its guarantee."""
        if queue < 0 or not self.guaranteed:
            return False
        own_path, other_path = self.tree.path[self.queue], self.tree.path[queue]
        if own_path[-1] != other_path[-1]:
            return False
        depth = 1  # number of queues that both paths share, from the root down
        while depth < min(len(own_path), len(other_path)) and own_path[-depth - 1] == other_path[-depth - 1]:
            depth += 1
        if depth >= len(own_path) or depth >= len(other_path) or own_path[-depth - 1] not in self.guaranteed:
            return False
        return all(self.usage_later.above_guarantee(q, cells) for q in other_path[: len(other_path) - depth])


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """Several candidates together."""

    members: Sequence[Preemptible]

    def amounts(self) -> dict[int, int]:
        """What they charge, by cell."""
        total: dict[int, int] = {}
        for member in self.members:
            for cell, amount in _release_of(member).amounts:
                total[cell] = total.get(cell, 0) + amount
        return total

    def node_usage(self) -> NodeUsage:
        """What they take. Rows may repeat."""
        usages = [_release_of(member).node_usage for member in self.members]
        return NodeUsage(
            np.concatenate([node_usage.rows for node_usage in usages]),
            np.concatenate([node_usage.amounts for node_usage in usages]),
        )


@dataclass(slots=True)
class PreemptionCandidates:
    """All candidates of a plan by queue, each queue in preemption order; computed at the first use."""

    cache: PlannerCache
    nominations: dict[str, ActiveNomination] = field(default_factory=dict)  # active nominations, by uid of the gang
    preempting: set[str] = field(default_factory=set)  # uids of gangs that are evicted or shrunk in this plan
    admitting: dict[str, Victim] = field(default_factory=dict)  # admissions of this plan, by uid
    _members: dict[int, list[Preemptible]] = field(default_factory=dict)
    _admitted: dict[int, list[Victim]] = field(default_factory=dict)  # by queue, withdrawn admissions included
    _admission_count: int = 0
    _nominated: dict[int, list[ActiveNomination]] | None = None
    _grace_s: float | None = None
    _sorted: dict[int, list[Victim]] = field(default_factory=dict)
    _lowest_priority: dict[int, int] | None = None
    _lower_priority: dict[int, VersionedCache[int, CandidateSet]] = field(default_factory=dict)  # by queue
    _above_guarantee: VersionedCache[frozenset[int], dict[int, tuple[int, ...]]] = field(default_factory=VersionedCache)

    def in_order(self, rights: PreemptionRights, queues: Iterable[int]) -> Iterator[Victim]:
        """Candidates of its own and of other queues, cheapest first. Elastic gangs appear twice: to shrink, then to be
        evicted."""
        own = [rights.queue] if self.has_candidates(rights.queue) else []
        for victim in merge(*(self._victims_in_queue(q) for q in (*own, *queues)), key=_key):
            current = self._current(victim)
            if current is not None and self.may_change(current.gang.uid) and rights.reason_for(current):
                yield current

    def may_change(self, uid: str) -> bool:
        """Whether a gang may be evicted or resized: it is not paused, nor evicted or shrunk in this plan."""
        return uid not in self.preempting and uid not in self.cache.snapshot.paused

    def may_grow(self, uid: str) -> bool:
        """Whether a gang may be grown."""
        return self.may_change(uid) and uid not in self.cache.snapshot.not_grown

    def _current(self, victim: Victim) -> Victim | None:
        """A candidate as of now; None if it is no longer nominated, or no longer to start."""
        if victim.gang_usage is not None or self.admitting.get(victim.gang.uid) is victim:
            return victim
        active = self.nominations.get(victim.gang.uid)
        return None if active is None else self._nomination_victim(active)

    def add_admitted(self, gang: Gang, release: ExpectedRelease) -> None:
        """A gang is admitted in this plan: preempting it loses no work. Of these the last is the newest."""
        self._admission_count += 1
        key = (True, gang.priority, 0, 0, -self.cache.snapshot.now, -self._admission_count, gang.uid)
        queue, victim = release.queue, Victim(gang, release, None, (), 0.0, key)
        self.admitting[gang.uid] = victim
        self._admitted.setdefault(queue, []).append(victim)
        if queue in self._members:
            self._members[queue].append(victim)
        if queue in self._sorted:
            insort(self._sorted[queue], victim, key=_key)
        if self._lowest_priority is not None:
            self._lowest_priority[queue] = min(gang.priority, self._lowest_priority.get(queue, gang.priority))

    def reclaimable(self, rights: PreemptionRights, version: int) -> tuple[int, ...]:
        """Queues with candidates from which the gang may reclaim usage above their guarantees. `version` is that of the
        usage: it is cached while that is the same."""
        if rights.is_empty:
            return ()
        above = self.queues_above_guarantee(rights.cells, rights.usage_later, version)
        path = rights.tree.path[rights.queue]
        found: tuple[int, ...] = ()
        for queue, fork in pairwise(path):
            if queue in rights.guaranteed:  # hence not above its guarantee: no queue below it is found here
                found += above.get(fork, ())
        return found

    def queues_above_guarantee(
        self, cells: frozenset[int], usage_later: QuotaUsage, version: int
    ) -> Mapping[int, tuple[int, ...]]:
        """For each inner queue: the queues below it with candidates that, with every queue in between, are above their
        guarantee of one of these cells."""
        known = self._above_guarantee.at(version)
        if cells not in known:
            tree, columns = usage_later.tree, sorted(cells)
            above = np.any(usage_later.table()[:, columns] > tree.guaranteed_table[:, columns], axis=1).tolist()
            found: dict[int, tuple[int, ...]] = {}
            for queue in tree.bottom_up:
                children = [child for child in tree.children[queue] if above[child]]
                below = [((child,) if self.has_candidates(child) else ()) + found.get(child, ()) for child in children]
                if any(below):
                    found[queue] = tuple(q for queues in below for q in queues)
            known[cells] = found
        return known[cells]

    def has_candidates(self, queue: int) -> bool:
        """Whether a queue has running gangs, nominations (when the plan began) or admissions of this plan."""
        if self._lowest_priority is None:
            self._lowest_priority = self._find_lowest_priorities()
        return queue in self._lowest_priority

    def members(self, queue: int) -> Sequence[Preemptible]:
        """The candidates of a queue: running, nominated or admitted in this plan."""
        found = self._members.get(queue)
        if found is None:
            releases = self.cache.releases
            uids = releases.uids[(releases.queue == queue) & releases.preemptible].tolist()
            nominated = self._nominated_by_queue().get(queue, ())
            started = self._admitted.get(queue, ())
            found = self._members[queue] = [*(self.cache.running[uid] for uid in uids), *nominated, *started]
        return found

    def _nominated_by_queue(self) -> Mapping[int, Sequence[ActiveNomination]]:
        """Nominations when the plan began, by queue; includes those that are suspended for a trial."""
        if self._nominated is None:
            self._nominated = {}
            for active in self.cache.nominations:
                self._nominated.setdefault(active.request.queue, []).append(active)
        return self._nominated

    def longest_grace_s(self) -> float:
        """The longest grace period of any gang."""
        if self._grace_s is None:
            self._grace_s = max(
                (gang_usage.running.gang.grace_s for gang_usage in self.cache.running.values()), default=0.0
            )
        return self._grace_s

    def _find_lowest_priorities(self) -> dict[int, int]:
        """The lowest priority in each queue that has candidates."""
        releases = self.cache.releases
        lowest = np.full(
            len(self.cache.tree.queues) + 1, NO_PRIORITY, dtype=np.int64
        )  # the last entry is for gangs without a queue
        np.minimum.at(lowest, releases.queue[releases.preemptible], releases.priority[releases.preemptible])
        for queue, nominated in self._nominated_by_queue().items():
            lowest[queue] = min(int(lowest[queue]), *(active.gang.priority for active in nominated))
        for queue, victims in self._admitted.items():
            lowest[queue] = min(int(lowest[queue]), *(victim.gang.priority for victim in victims))
        return {queue: priority for queue, priority in enumerate(lowest[:-1].tolist()) if priority < NO_PRIORITY}

    def lower_priority(self, queue: int, priority: int) -> CandidateSet | None:
        """Candidates of a queue with a lower priority; None if there are none."""
        if self._lowest_priority is None:
            self._lowest_priority = self._find_lowest_priorities()
        if priority <= self._lowest_priority.get(queue, priority):
            return None
        members = self.members(queue)
        known = self._lower_priority.setdefault(queue, VersionedCache()).at(len(members))
        if priority not in known:
            known[priority] = CandidateSet([member for member in members if _gang(member).priority < priority])
        return known[priority]

    def _victims_in_queue(self, queue: int) -> list[Victim]:
        found = self._sorted.get(queue)
        if found is None:
            victims = (victim for member in self.members(queue) for victim in self._victims_of(member))
            found = self._sorted[queue] = sorted(victims, key=_key)
        return found

    def _victims_of(self, member: Preemptible) -> Iterator[Victim]:
        if not isinstance(member, GangUsage):
            yield self._nomination_victim(member) if isinstance(member, ActiveNomination) else member
            return
        gang_usage = member
        smallest = self.shrink(gang_usage, None, None)
        if smallest is not None:
            yield smallest
        assert gang_usage.release is not None
        yield self._running_victim(gang_usage, gang_usage.release, ())

    def shrink(self, gang_usage: GangUsage, region: BoolArray | None, shed: int | None) -> Victim | None:
        """An elastic gang without this many pods, or as many as possible; pods in a region of the nodes first."""
        gang = gang_usage.running.gang
        if not (gang_usage.elastic and gang_usage.is_admitted):
            return None
        rows = self.cache.table.row_of
        inside = frozenset(
            n
            for part in gang_usage.running.placement
            for n, _ in part.nodes
            if region is not None and n in rows and region[rows[n]]
        )
        remaining = shed_pods(gang, gang_usage.running.placement, inside, shed)
        if not remaining:
            return None
        left = node_usage_of_placement(self.cache.table, gang, remaining)
        amounts = gang_usage.node_usage.amounts.copy()
        amounts[np.searchsorted(gang_usage.node_usage.rows, left.rows)] -= left.amounts
        freed = amounts.any(axis=1)
        charge = dict(gang_usage.amounts)
        for cell, amount in quota_of_placement(self.cache.tree, gang_usage.queue, gang, remaining):
            charge[cell] -= amount
        node_usage = NodeUsage(gang_usage.node_usage.rows[freed], amounts[freed])
        assert gang_usage.release is not None
        part = replace(gang_usage.release, node_usage=node_usage, amounts=tuple(charge.items()))
        return self._running_victim(gang_usage, part, remaining)

    def _running_victim(self, gang_usage: GangUsage, freed: ExpectedRelease, remaining: Placement) -> Victim:
        """A running gang with its sort key: shrink first, then cheapest, newest, uid."""
        now, gang = self.cache.snapshot.now, gang_usage.running.gang
        lost, evictions = lost_work_s(gang_usage, now), recent_evictions(gang, now)
        pods = max(1, sum(part.replicas for part in gang_usage.running.placement))
        steps = pods * math.ceil(
            lost / (pods * _LOST_WORK_STEP_S)
        )  # of two gangs in step 1, the smaller one loses less
        key = (not remaining, gang.priority, steps, len(evictions), -gang_usage.running.admitted_at, 0, gang.uid)
        protected, until = is_protected(self.cache.tree, gang_usage, now), exempt_until(self.cache.tree, gang_usage)
        return Victim(gang, freed, gang_usage, remaining, lost, key, protected, now < until, evictions)

    def _nomination_victim(self, active: ActiveNomination) -> Victim:
        """A gang that only has a nomination: no work is lost."""
        gang = active.gang
        key = (True, gang.priority, 0, 0, -active.nomination.expires_at, 0, gang.uid)
        due = due_at(self.cache.tree, active.request.queue, gang)
        protected = due is not None and due <= self.cache.snapshot.now
        return Victim(gang, active.release, None, (), 0.0, key, protected)


def _gang(member: Preemptible) -> Gang:
    return member.running.gang if isinstance(member, GangUsage) else member.gang


def _release_of(member: Preemptible) -> ExpectedRelease:
    """What an evicted candidate frees."""
    if isinstance(member, ActiveNomination):
        return member.release
    if isinstance(member, Victim):
        return member.freed
    assert member.release is not None
    return member.release


def _key(victim: Victim) -> tuple[bool, int, int, int, float, int, str]:
    return victim.key


def lost_work_s(gang_usage: GangUsage, now: float) -> float:
    """Pod seconds since the last checkpoint or the start of the attempt, whichever is later; at most 30 minutes per
    pod. 0 for a gang that has not started, or whose pods are terminating."""
    running = gang_usage.running
    if not gang_usage.is_admitted or running.started_at is None:
        return 0.0
    since = max(running.started_at, running.checkpoint_at or 0.0)
    return sum(part.replicas for part in running.placement) * min(max(0.0, now - since), MAX_LOST_WORK_S)


def shed_pods(gang: Gang, placement: Placement, first: Collection[str], count: int | None) -> Placement:
    """A placement without `count` of the pods above the minimum (None: all of them); empty if there are none. The last
    role shrinks first; of its pods those on the nodes in `first`, and of these the last."""
    minimum = {role.name: role.min_replicas for role in gang.roles}
    left = sum(max(0, part.replicas - minimum[part.role]) for part in placement) if count is None else count
    parts: list[RolePlacement] = []
    shed = 0
    for part in reversed(placement):
        give = min(left, max(0, part.replicas - minimum[part.role]))
        left -= give
        shed += give
        nodes = list(part.nodes)
        for wanted in (True, False):
            for i in range(len(nodes) - 1, -1, -1):
                name, pods = nodes[i]
                if (name in first) is wanted and give:
                    nodes[i] = (name, pods - min(give, pods))
                    give -= min(give, pods)
        parts.append(RolePlacement(part.role, part.flavor, tuple((name, pods) for name, pods in nodes if pods)))
    return tuple(reversed(parts)) if shed else ()
