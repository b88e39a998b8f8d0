"""Whom a gang may ask to leave, and in what order.

Inside a leaf a strictly higher priority may take over. Across queues a gang that stays within a guarantee on its path
takes back what others use above theirs; priority plays no part there. Of those who may be asked, elastic gangs shrink
first, then the lowest priority leaves, then the least lost work, the newest, by uid. Who was to start in the same plan
may be asked like those who run: it has lost nothing and is the newest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from muster.model import Gang, Placement, RolePlacement
from muster.quota import Charges, QueueTree
from muster.scheduling.departures import Departure
from muster.scheduling.holds import Held, held_room
from muster.scheduling.memo import Memo, Stay, charge_of, placed_load
from muster.scheduling.nodes import BoolArray
from muster.scheduling.room import Load
from muster.scheduling.shape import Request

LOST_WORK_CAP_S = 1800.0
"""Lost work counts at most so many seconds a pod: nobody becomes untouchable by never saving."""

FAR = np.iinfo(np.int64).max

Reason = Literal["Reclaimed", "Preempted"]


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A gang that leaves, shrinks to `kept`, or, where `stay` is None, loses a hold or is not started after all;
    `freed` is what it gives up."""

    gang: Gang
    freed: Departure
    stay: Stay | None
    kept: Placement
    lost_work_s: float
    key: tuple[bool, int, float, float, str]


Member: TypeAlias = Stay | Held | Victim
"""Who may be asked to leave: who runs, holds room, or (as a victim already) starts in this plan."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a gang is entitled to in one of its options, as charges stand; they change with each victim."""

    gang: Gang
    queue: int
    tree: QueueTree
    staying: Charges
    cells: frozenset[int]
    guaranteed: frozenset[int]  # queues on its path, the root aside, that stay within their guarantee with it

    @classmethod
    def of(cls, gang: Gang, request: Request, option: int, staying: Charges, within: int) -> Rights:
        """The rights of a gang that is within some guarantees of its path (see `Entitlement`)."""
        path = staying.tree.path[request.queue]
        guaranteed = frozenset(q for place, q in enumerate(path[:-1]) if within >> place & 1)
        cells = frozenset(cell for cell, _ in request.least[option])
        return cls(gang, request.queue, staying.tree, staying, cells, guaranteed)

    @property
    def none(self) -> bool:
        """Tell whether nobody in other queues may be asked."""
        return not self.guaranteed

    def over(self, victim: Victim) -> Reason | None:
        """By what right the gang may make somebody leave; None: by none."""
        if victim.freed.queue == self.queue:
            return "Preempted" if victim.gang.priority < self.gang.priority else None
        cells = self.cells.intersection(cell for cell, _ in victim.freed.amounts)
        return "Reclaimed" if self.reclaims(victim.freed.queue, cells) else None

    def reclaims(self, queue: int, cells: Collection[int]) -> bool:
        """Tell whether the gang may take back these cells from a queue: every queue from that one up to below the
        common ancestor is above its guarantee."""
        if queue < 0 or not self.guaranteed:
            return False
        mine, theirs = self.tree.path[self.queue], self.tree.path[queue]
        if mine[-1] != theirs[-1]:
            return False
        depth = 1  # how many queues both paths share, from the root down
        while depth < min(len(mine), len(theirs)) and mine[-depth - 1] == theirs[-depth - 1]:
            depth += 1
        if depth >= len(mine) or depth >= len(theirs) or mine[-depth - 1] not in self.guaranteed:
            return False
        return all(self.staying.above_guarantee(q, cells) for q in theirs[: len(theirs) - depth])


@dataclass(frozen=True, slots=True, eq=False)
class Several:
    """Some who run, hold room or start, together."""

    members: Sequence[Member]

    def amounts(self) -> dict[int, int]:
        """What they charge, by cell."""
        total: dict[int, int] = {}
        for member in self.members:
            for cell, amount in _given(member).amounts:
                total[cell] = total.get(cell, 0) + amount
        return total

    def load(self) -> Load:
        """What they take. Rows may repeat."""
        loads = [_given(member).load for member in self.members]
        return Load(np.concatenate([load.rows for load in loads]), np.concatenate([load.amounts for load in loads]))


@dataclass(slots=True)
class Victims:
    """Everyone who runs, holds room or starts in this plan, by queue, each queue in the order to ask; made when first
    asked for."""

    facts: Memo
    held: dict[str, Held] = field(default_factory=dict)  # holds that stand, by uid of the gang
    asked: set[str] = field(default_factory=set)  # uids of those who leave or shrink
    starting: dict[str, Victim] = field(default_factory=dict)  # those who start, by uid
    _members: dict[int, list[Member]] = field(default_factory=dict)
    _started: dict[int, list[Victim]] = field(default_factory=dict)  # by queue, those who do not start after all too
    _holders: dict[int, list[Held]] | None = None
    _grace_s: float | None = None
    _sorted: dict[int, list[Victim]] = field(default_factory=dict)
    _above: dict[frozenset[int], tuple[int, dict[int, tuple[int, ...]]]] = field(default_factory=dict)
    _lowest_priority: dict[int, int] | None = None
    _lower: dict[tuple[int, int], Several] = field(default_factory=dict)

    def of(self, rights: Rights, queues: Iterable[int]) -> Iterator[Victim]:
        """Those of its own and of other queues whom a gang may ask, cheapest first. Elastic gangs come twice: once to
        shrink, once to leave."""
        own = [rights.queue] if self.anybody(rights.queue) else []
        for victim in merge(*(self._queue(q) for q in (*own, *queues)), key=_key):
            if victim.gang.uid not in self.asked and self._is_there(victim) and rights.over(victim):
                yield victim

    def _is_there(self, victim: Victim) -> bool:
        """Tell whether somebody still runs, holds its room or is to start."""
        if victim.stay is not None or self.starting.get(victim.gang.uid) is victim:
            return True
        held = self.held.get(victim.gang.uid)
        return held is not None and held.taken is victim.freed

    def start(self, gang: Gang, taken: Departure) -> None:
        """A gang starts in this plan: it loses nothing if it does not."""
        key = (True, gang.priority, 0.0, -self.facts.snapshot.now, gang.uid)
        queue, victim = taken.queue, Victim(gang, taken, None, (), 0.0, key)
        self.starting[gang.uid] = victim
        self._started.setdefault(queue, []).append(victim)
        if queue in self._members:
            self._members[queue].append(victim)
        if queue in self._sorted:
            insort(self._sorted[queue], victim, key=_key)
        if self._lowest_priority is not None:
            self._lowest_priority[queue] = min(gang.priority, self._lowest_priority.get(queue, gang.priority))
        for known in [known for known in self._lower if known[0] == queue]:
            del self._lower[known]

    def reclaimable(self, rights: Rights, version: int) -> tuple[int, ...]:
        """Queues in which somebody is, from which the gang may take back what they use above their guarantees.

        `version` of the charges: as long as it is the same, so is what is above.
        """
        if rights.none:
            return ()
        above = self.above_below(rights.cells, rights.staying, version)
        path = rights.tree.path[rights.queue]
        found: tuple[int, ...] = ()
        for mine, fork in pairwise(path):
            if mine in rights.guaranteed:  # and hence not above its guarantee: nobody below it is found here
                found += above.get(fork, ())
        return found

    def above_below(self, cells: frozenset[int], staying: Charges, version: int) -> Mapping[int, tuple[int, ...]]:
        """For each inner queue: those below it in which somebody is, all of them above their guarantee of one of
        these cells, and so is everyone in between."""
        known = self._above.get(cells)
        if known is None or known[0] != version:
            tree, columns = staying.tree, sorted(cells)
            above = np.any(staying.table()[:, columns] > tree.guarantees[:, columns], axis=1).tolist()
            found: dict[int, tuple[int, ...]] = {}
            for queue in tree.bottom_up:
                children = [child for child in tree.children[queue] if above[child]]
                below = [((child,) if self.anybody(child) else ()) + found.get(child, ()) for child in children]
                if any(below):
                    found[queue] = tuple(q for queues in below for q in queues)
            known = self._above[cells] = version, found
        return known[1]

    def anybody(self, queue: int) -> bool:
        """Tell whether somebody runs, held room when the plan began, or was to start in it, in a queue."""
        if self._lowest_priority is None:
            self._lowest_priority = self._find_lowest()
        return queue in self._lowest_priority

    def members(self, queue: int) -> Sequence[Member]:
        """Who runs, holds room, or was to start, in a queue."""
        found = self._members.get(queue)
        if found is None:
            crowd = self.facts.departures
            uids = crowd.uids[(crowd.queue == queue) & crowd.settled].tolist()
            holders = self._holders_of().get(queue, ())
            started = self._started.get(queue, ())
            found = self._members[queue] = [*(self.facts.stays[uid] for uid in uids), *holders, *started]
        return found

    def _holders_of(self) -> Mapping[int, Sequence[Held]]:
        """Who held room when the plan began, by queue: a hold that is tried, and set aside again, counts as well."""
        if self._holders is None:
            self._holders = {}
            for held in held_room(self.facts):
                self._holders.setdefault(held.request.queue, []).append(held)
        return self._holders

    def longest_grace_s(self) -> float:
        """The longest anybody may take to leave."""
        if self._grace_s is None:
            self._grace_s = max((stay.running.gang.grace_s for stay in self.facts.stays.values()), default=0.0)
        return self._grace_s

    def _find_lowest(self) -> dict[int, int]:
        """The lowest priority in each queue in which somebody is."""
        crowd = self.facts.departures
        lowest = np.full(len(self.facts.tree.queues) + 1, FAR, dtype=np.int64)  # the last is of gangs without a queue
        np.minimum.at(lowest, crowd.queue[crowd.settled], crowd.priority[crowd.settled])
        for queue, holders in self._holders_of().items():
            lowest[queue] = min(int(lowest[queue]), *(held.gang.priority for held in holders))
        for queue, victims in self._started.items():
            lowest[queue] = min(int(lowest[queue]), *(victim.gang.priority for victim in victims))
        return {queue: priority for queue, priority in enumerate(lowest[:-1].tolist()) if priority < FAR}

    def lower(self, queue: int, priority: int) -> Several | None:
        """Those of a queue who have a lower priority; None when there are none."""
        if self._lowest_priority is None:
            self._lowest_priority = self._find_lowest()
        if priority <= self._lowest_priority.get(queue, priority):
            return None
        key = (queue, priority)
        if key not in self._lower:
            self._lower[key] = Several([m for m in self.members(queue) if _gang(m).priority < priority])
        return self._lower[key]

    def _queue(self, queue: int) -> list[Victim]:
        found = self._sorted.get(queue)
        if found is None:
            victims = (victim for member in self.members(queue) for victim in self._victims(member))
            found = self._sorted[queue] = sorted(victims, key=_key)
        return found

    def _victims(self, member: Member) -> Iterator[Victim]:
        if not isinstance(member, Stay):
            yield _holder(member) if isinstance(member, Held) else member
            return
        stay = member
        smallest = self.shrunk(stay, None, None)
        if smallest is not None:
            yield smallest
        assert stay.later is not None
        yield _victim(stay, stay.later, (), self.facts.snapshot.now)

    def shrunk(self, stay: Stay, region: BoolArray | None, shed: int | None) -> Victim | None:
        """An elastic gang that sheds so many pods, or as many as it can; those in a region of the nodes first."""
        gang = stay.running.gang
        if not (stay.elastic and stay.settled):
            return None
        rows = self.facts.table.row_of
        inside = frozenset(
            n
            for part in stay.running.placement
            for n, _ in part.nodes
            if region is not None and n in rows and region[rows[n]]
        )
        kept = shed_pods(gang, stay.running.placement, inside, shed)
        if not kept:
            return None
        left = placed_load(self.facts.table, gang, kept)
        amounts = stay.load.amounts.copy()
        amounts[np.searchsorted(stay.load.rows, left.rows)] -= left.amounts
        freed = amounts.any(axis=1)
        charge = dict(stay.amounts)
        for cell, amount in charge_of(self.facts.tree, stay.queue, gang, kept):
            charge[cell] -= amount
        load = Load(stay.load.rows[freed], amounts[freed])
        assert stay.later is not None
        part = replace(stay.later, load=load, amounts=tuple(charge.items()))
        return _victim(stay, part, kept, self.facts.snapshot.now)


def _gang(member: Member) -> Gang:
    return member.running.gang if isinstance(member, Stay) else member.gang


def _given(member: Member) -> Departure:
    """What somebody gives up who leaves."""
    if isinstance(member, Held):
        return member.taken
    if isinstance(member, Victim):
        return member.freed
    assert member.later is not None
    return member.later


def _key(victim: Victim) -> tuple[bool, int, float, float, str]:
    return victim.key


def _victim(stay: Stay, freed: Departure, kept: Placement, now: float) -> Victim:
    """A running gang with its place in the order: shrink first, then cheapest, newest, uid."""
    gang, lost = stay.running.gang, lost_work_s(stay, now)
    key = (not kept, gang.priority, lost, -stay.running.admitted_at, gang.uid)
    return Victim(gang, freed, stay, kept, lost, key)


def _holder(held: Held) -> Victim:
    """Somebody who only holds room: nothing is lost."""
    key = (True, held.gang.priority, 0.0, -held.hold.expires_at, held.gang.uid)
    return Victim(held.gang, held.taken, None, (), 0.0, key)


def lost_work_s(stay: Stay, now: float) -> float:
    """Pod seconds since the last checkpoint, or since the start; at most 30 minutes a pod. None of a gang whose pods
    stop already."""
    running = stay.running
    if not stay.settled:
        return 0.0
    since = running.checkpoint_at if running.checkpoint_at is not None else running.started_at
    pods = sum(part.replicas for part in running.placement)
    return 0.0 if since is None else pods * min(max(0.0, now - since), LOST_WORK_CAP_S)


def shed_pods(gang: Gang, placement: Placement, first: Collection[str], count: int | None) -> Placement:
    """A placement without `count` of the pods above the minimum (None: all of them); empty when there are none.

    The last role gives first; of its pods those on the nodes in `first`, and of these the last.
    """
    least = {role.name: role.min_replicas for role in gang.roles}
    left = sum(max(0, part.replicas - least[part.role]) for part in placement) if count is None else count
    parts: list[RolePlacement] = []
    shed = 0
    for part in reversed(placement):
        give = min(left, max(0, part.replicas - least[part.role]))
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
