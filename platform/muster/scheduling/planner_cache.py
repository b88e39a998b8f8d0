"""What a plan derives from a snapshot, kept for the next plan: node arrays, free capacity, quota usage, requests,
and the pending gangs of each leaf queue in order.

It holds no decision. Each value is a function of the objects it was derived from: it is carried over while those
objects are identical, and updated where few changed. So a plan with a cache equals the plan without one.

The planner caches in three ways. Nothing is cleared by hand but two values, each by the one method that changes what it
is derived from: the available quota of `QuotaUsage`, and the merged releases of `BackfillReservations`.
- Here: what holds from plan to plan. Requests, feasibility and the messages about requests follow from nodes and queues
  and are replaced together with them; `FreeCapacity` brings its counts of pods up to date by its list of changes.
- `VersionedCache`: what holds until capacity or quota change within a plan.
- Attributes of objects that live for one plan (candidates, reservations, messages of waits): what holds for that plan.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from muster.model import Gang, RunningGang, Snapshot, Wait
from muster.quota import QueueTree, QuotaUsage, queue_tree
from muster.scheduling.capacity import FreeCapacity, NodeMasks
from muster.scheduling.feasibility import Feasibility, RequestMessages, UnschedulableReason, priority_too_high
from muster.scheduling.gang_requests import QueueRequest, RequestCache
from muster.scheduling.nodes import NodeTable, node_table
from muster.scheduling.nominations import ActiveNomination, nominated_gang
from muster.scheduling.releases import ExpectedRelease, ExpectedReleases, GangUsage, gang_usage

T = TypeVar("T")

STALE_REQUESTS_ALLOWED = 256
"""The cache is rebuilt once it contains this many requests beyond twice the number of gangs, since every plan
processes all of them."""


LeafOrder: TypeAlias = tuple[int, float, str]
"""Priority high to low, first submit time, uid: the order inside a leaf."""

INSERT_LIMIT = 16
"""Up to this many new gangs are inserted one by one; more are sorted."""


class PendingGang(NamedTuple):
    """A pending gang, its request, and its position in the order of its leaf."""

    gang: Gang
    request: QueueRequest
    order: LeafOrder

    @classmethod
    def of(cls, gang: Gang, request: QueueRequest) -> PendingGang:
        """The entry of a pending gang."""
        return cls(gang, request, (-gang.priority, gang.submitted_at, gang.uid))


BY_LEAF_ORDER = attrgetter("order")

GuaranteeDemand: TypeAlias = Mapping[tuple[int, int], int]
"""By queue and cell: what gangs in and below the queue request, of those that are within its guarantee each."""


def add_demand(demand: dict[tuple[int, int], int], tree: QueueTree, request: QueueRequest, sign: int) -> None:
    """Add (1) or remove (-1) a gang with this request. A gang counts in the first option that is within a guarantee."""
    if not any(request.coverable_guarantees):
        return
    for position, queue in enumerate(tree.path[request.queue]):
        for coverable, amounts in zip(request.coverable_guarantees, request.min_quota, strict=True):
            if coverable >> position & 1:
                for cell, amount in amounts:
                    demand[queue, cell] = demand.get((queue, cell), 0) + sign * amount
                break


@dataclass(frozen=True, slots=True, eq=False)
class LeafQueue:
    """Pending gangs of one leaf, the next one first, and the same in two parts: `borrowers` request more than the
    leaf's whole guarantee in every option, `entitled` do not. Immutable."""

    pending: list[PendingGang]
    entitled: list[PendingGang]
    borrowers: list[PendingGang]

    def updated(self, removed: Collection[str], added: Iterable[PendingGang]) -> LeafQueue:
        """Without the gangs of these uids, and with new ones."""
        parts: tuple[list[PendingGang], list[PendingGang]] = ([], [])
        for waiting in added:
            parts[any(option & 1 for option in waiting.request.coverable_guarantees)].append(waiting)
        return LeafQueue(
            _updated(self.pending, removed, [*parts[0], *parts[1]]),
            _updated(self.entitled, removed, parts[1]),
            _updated(self.borrowers, removed, parts[0]),
        )


EMPTY_LEAF = LeafQueue([], [], [])


def update_leaves(
    leaves: Mapping[int, LeafQueue], removed: Iterable[PendingGang], added: Iterable[PendingGang]
) -> dict[int, LeafQueue]:
    """The leaves that have pending gangs, by queue, after some left and others came. Gangs of queues that do not exist
    are in none."""
    changes: dict[int, tuple[set[str], list[PendingGang]]] = {}
    for waiting in removed:
        changes.setdefault(waiting.request.queue, (set(), []))[0].add(waiting.gang.uid)
    for waiting in added:
        changes.setdefault(waiting.request.queue, (set(), []))[1].append(waiting)
    changes.pop(-1, None)
    after = dict(leaves)
    for queue, (uids, new) in changes.items():
        leaf = leaves.get(queue, EMPTY_LEAF).updated(uids, new)
        if leaf.pending:
            after[queue] = leaf
        else:
            after.pop(queue, None)
    return after


def _updated(entries: list[PendingGang], removed: Collection[str], added: list[PendingGang]) -> list[PendingGang]:
    if not removed and not added:
        return entries
    remaining = [waiting for waiting in entries if waiting.gang.uid not in removed] if removed else entries.copy()
    if len(added) > INSERT_LIMIT:
        remaining += added
        remaining.sort(key=BY_LEAF_ORDER)
        return remaining
    for waiting in added:
        insort(remaining, waiting, key=BY_LEAF_ORDER)
    return remaining


@dataclass(frozen=True, slots=True, eq=False)
class PlannerCache:
    """Derived values of one snapshot, and the waits of its plan.

    Fields are not changed after they are set. What is derived from nodes and queues only (`request_cache`, `messages`,
    `feasibility`) and the counts of pod classes in `free_now` and `free_later` are computed when they are needed.
    """

    snapshot: Snapshot
    table: NodeTable
    tree: QueueTree
    request_cache: RequestCache
    running: dict[str, GangUsage]  # by uid
    running_heads: frozenset[str]  # uids of those that were the first that had to borrow, or may have been
    pending: dict[str, PendingGang]  # by uid
    infeasible: dict[str, UnschedulableReason]  # by uid, in the snapshot's order: could not start in an empty cluster
    demand: GuaranteeDemand  # of pending gangs that are feasible
    leaves: dict[int, LeafQueue]  # leaf queues with pending gangs, by queue
    available: FreeCapacity  # of nodes that are up, without gangs
    free_now: FreeCapacity  # free beside all running gangs
    free_later: FreeCapacity  # free once terminating gangs have ended
    messages: RequestMessages
    feasibility: Feasibility
    usage_now: QuotaUsage
    usage_later: QuotaUsage  # charged once terminating gangs have ended
    releases: ExpectedReleases  # of gangs that are not terminating
    nominations: tuple[ActiveNomination, ...]
    waits: Mapping[str, Wait]  # of the last plan, by uid: the same objects are used again while nothing changed


def update(snapshot: Snapshot, previous: PlannerCache | None = None) -> PlannerCache:
    """Derive the cache of a snapshot, from an earlier cache where possible."""
    before = previous.snapshot if previous else None
    same_flavors = before is not None and _same(before.flavors, snapshot.flavors)
    same_nodes = (
        before is not None
        and same_flavors
        and before.excluded_nodes == snapshot.excluded_nodes
        and _same(before.nodes, snapshot.nodes)
    )
    same_queues = before is not None and _same(before.queues, snapshot.queues)
    table = (
        previous.table
        if previous and same_nodes
        else node_table(snapshot.nodes, snapshot.flavors, snapshot.excluded_nodes)
    )
    tree = previous.tree if previous and same_queues else queue_tree(snapshot.queues)
    if previous and same_nodes and same_queues and not _mostly_stale(snapshot, previous):
        return _apply_changes(snapshot, previous)
    masks = NodeMasks(table)
    empty_cluster = FreeCapacity(masks, table.usable, ignore_health=True)
    allocatable = (
        empty_cluster
        if table.allocatable is table.usable
        else FreeCapacity(masks, table.allocatable, ignore_health=True)
    )
    messages = RequestMessages(table, tree, allocatable, QuotaUsage(tree))
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    fresh = PlannerCache(
        snapshot=replace(snapshot, running=(), pending=(), nominations=()),
        table=table,
        tree=tree,
        request_cache=RequestCache(table, tree, flavors),
        running={},
        running_heads=frozenset(),
        pending={},
        infeasible={},
        demand={},
        leaves={},
        available=FreeCapacity(masks, table.usable),
        free_now=FreeCapacity(masks, table.usable.copy()),
        free_later=FreeCapacity(masks, table.usable.copy()),
        messages=messages,
        feasibility=Feasibility(messages, empty_cluster),
        usage_now=QuotaUsage(tree),
        usage_later=QuotaUsage(tree),
        releases=ExpectedReleases.of((), len(table.columns)),
        nominations=(),
        waits={},
    )
    return _apply_changes(snapshot, fresh)


def _mostly_stale(snapshot: Snapshot, cache: PlannerCache) -> bool:
    """Whether most cached requests are of gangs that no longer exist."""
    gang_count = len(snapshot.pending) + len(snapshot.running) + len(snapshot.nominations)
    return len(cache.request_cache) > 2 * gang_count + STALE_REQUESTS_ALLOWED


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Whether both tuples hold the same objects."""
    return old is new or (len(old) == len(new) and all(map(_is, old, new)))


def _is(old: object, new: object) -> bool:
    return old is new


def _added_and_removed(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Items that are only in the old sequence, and items that are only in the new one, by identity."""
    if old is new:
        return [], []
    before, after = set(map(id, old)), set(map(id, new))
    return [one for one in old if id(one) not in after], [one for one in new if id(one) not in before]


def _apply_changes(snapshot: Snapshot, previous: PlannerCache) -> PlannerCache:
    """The cache updated with changed pending and running gangs."""
    now, later = previous.free_now.carry_over(), previous.free_later.carry_over()
    usage_now, usage_later = previous.usage_now.fork(), previous.usage_later.fork()
    running_by_uid = dict(previous.running)
    removed, added = _added_and_removed(previous.snapshot.running, snapshot.running)
    tiebreaks: list[int] = []
    for running in removed:
        usage = running_by_uid.pop(running.gang.uid)
        _add_usage(usage, 1, now, later, usage_now, usage_later)
        if usage.release is not None:
            tiebreaks.append(usage.release.tiebreak)
    added_releases: list[ExpectedRelease] = []
    for running in added:
        usage = running_by_uid[running.gang.uid] = gang_usage(previous.table, previous.tree, running)
        _add_usage(usage, -1, now, later, usage_now, usage_later)
        if usage.release is not None:
            added_releases.append(usage.release)
    releases = previous.releases.without(tiebreaks).plus(
        ExpectedReleases.of(added_releases, len(previous.table.columns))
    )
    pending, infeasible, demand, leaves = _update_pending(snapshot, previous)
    return replace(
        previous,
        snapshot=snapshot,
        running=running_by_uid,
        running_heads=_running_heads(previous.running_heads, removed, added),
        pending=pending,
        infeasible=infeasible,
        demand=demand,
        leaves=leaves,
        free_now=now,
        free_later=later,
        usage_now=usage_now,
        usage_later=usage_later,
        releases=releases,
        nominations=tuple(_active_nominations(snapshot, previous, pending, running_by_uid)),
    )


def _running_heads(
    before: frozenset[str], removed: Iterable[RunningGang], added: Iterable[RunningGang]
) -> frozenset[str]:
    gone = {running.gang.uid for running in removed}
    new = {running.gang.uid for running in added if running.gang.borrowing_head_since is not None}
    return before - gone | new if new or not before.isdisjoint(gone) else before


def _active_nominations(
    snapshot: Snapshot, previous: PlannerCache, pending: Mapping[str, PendingGang], running: Mapping[str, GangUsage]
) -> Iterator[ActiveNomination]:
    """The active nominations: not expired, of gangs that are pending, restarting or in backoff."""
    known = {active.gang.uid: active for active in previous.nominations}
    for nomination in snapshot.nominations:
        uid = nomination.gang_uid
        gang = pending[uid].gang if uid in pending else nominated_gang(nomination, running.get(uid))
        if gang is None or nomination.expires_at <= snapshot.now:
            continue
        request = pending[uid].request if uid in pending else previous.request_cache.request(gang)
        active = known.get(uid)
        if (
            active is None
            or active.nomination is not nomination
            or active.gang is not gang
            or active.request is not request
        ):
            active = ActiveNomination.of(previous.table, previous.tree, nomination, gang, request)
        yield active


def _update_pending(
    snapshot: Snapshot, previous: PlannerCache
) -> tuple[dict[str, PendingGang], dict[str, UnschedulableReason], GuaranteeDemand, dict[int, LeafQueue]]:
    """Pending gangs, infeasible gangs, demand and leaf queues, updated with gangs that came and went."""
    if snapshot.pending is previous.snapshot.pending:
        return previous.pending, previous.infeasible, previous.demand, previous.leaves
    removed, added = _added_and_removed(previous.snapshot.pending, snapshot.pending)
    pending, reasons = previous.pending.copy(), previous.infeasible.copy()
    removed_entries = [pending.pop(gang.uid) for gang in removed]
    demand = dict(previous.demand)
    for waiting in removed_entries:
        if reasons.pop(waiting.gang.uid, None) is None:
            add_demand(demand, previous.tree, waiting.request, -1)
    added_entries = [PendingGang.of(gang, previous.request_cache.request(gang)) for gang in added]
    for waiting in added_entries:
        pending[waiting.gang.uid] = waiting
        why = previous.feasibility.reason(waiting.request) or priority_too_high(
            previous.tree, waiting.gang, waiting.request
        )
        if why is not None:
            reasons[waiting.gang.uid] = why
        else:
            add_demand(demand, previous.tree, waiting.request, 1)
    infeasible = {gang.uid: reasons[gang.uid] for gang in snapshot.pending if gang.uid in reasons}
    return pending, infeasible, demand, update_leaves(previous.leaves, removed_entries, added_entries)


def _add_usage(
    usage: GangUsage,
    sign: int,
    free_now: FreeCapacity,
    free_later: FreeCapacity,
    usage_now: QuotaUsage,
    usage_later: QuotaUsage,
) -> None:
    """Free what a gang takes and charges (+1), or take it (-1)."""
    free_now.add(usage.node_usage, sign)
    if usage.queue >= 0:
        usage_now.add(usage.queue, usage.amounts, -sign)
    if usage.release is not None:
        free_later.add(usage.release.node_usage, sign)
        if usage.queue >= 0:
            usage_later.add(usage.queue, usage.release.amounts, -sign)
