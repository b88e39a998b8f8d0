"""What a plan derives from a snapshot, kept for the next plan: node arrays, free capacity, quota usage, requests.

It holds no decision. Each value is a function of the objects it was derived from: it is carried over while those
objects are identical, and updated where few changed. So a plan with a cache equals the plan without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from muster.model import Gang, Placement, RolePlacement, RunningGang, Snapshot, Wait
from muster.quota import CellAmounts, QueueTree, QuotaUsage, queue_tree
from muster.scheduling.capacity import FreeCapacity, NodeMasks, NodeUsage
from muster.scheduling.feasibility import Feasibility, UnschedulableReason, priority_too_high
from muster.scheduling.gang_requests import RequestCache
from muster.scheduling.leaf_queues import LeafQueue, PendingGang, update_leaves
from muster.scheduling.nodes import NodeTable, node_table
from muster.scheduling.releases import ExpectedRelease, ExpectedReleases, latest_release, tiebreak_of
from muster.scheduling.request_messages import RequestMessages

if TYPE_CHECKING:
    from muster.scheduling.nominations import ActiveNomination

T = TypeVar("T")

STALE_REQUESTS_ALLOWED = 256
"""The cache is rebuilt once it remembers this many requests beyond twice the number of gangs, since every plan
processes all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class GangUsage:
    """A running gang: what it takes from nodes, and what it charges to its queue (-1: the queue was deleted).

    `release` is what it takes once terminating gangs are gone: everything while it is admitted, the retained part while
    it is resized or restarted, None when it leaves.
    """

    running: RunningGang
    queue: int
    node_usage: NodeUsage
    amounts: CellAmounts
    release: ExpectedRelease | None
    elastic: bool

    @property
    def is_admitted(self) -> bool:
        """Whether the gang is running and not terminating."""
        return self.running.state == "admitted"


@dataclass(frozen=True, slots=True, eq=False)
class PlannerCache:
    """Derived values of one snapshot. Not changed after its plan, except for lazily counted pod classes."""

    snapshot: Snapshot
    table: NodeTable
    tree: QueueTree
    request_cache: RequestCache
    running: dict[str, GangUsage]  # by uid
    pending: dict[str, PendingGang]  # by uid
    infeasible: dict[
        str, UnschedulableReason
    ]  # by uid, in the snapshot's order: pending gangs that could not start in an empty cluster
    leaves: dict[int, LeafQueue]  # leaf queues with pending gangs, by queue
    free_now: FreeCapacity  # free beside all running gangs
    free_later: FreeCapacity  # free once terminating gangs are gone
    messages: RequestMessages
    feasibility: Feasibility
    usage_now: QuotaUsage
    usage_later: QuotaUsage  # charged once terminating gangs are gone
    releases: ExpectedReleases  # of gangs that are not terminating
    nominations: dict[str, ActiveNomination]  # by uid of the gang; nominations that were validated
    last_waits: dict[str, Wait]  # by uid; the last Wait, reused as the same object while nothing changed


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
    ideal = FreeCapacity(masks, table.usable, ignore_health=True)
    bare = ideal if table.allocatable is table.usable else FreeCapacity(masks, table.allocatable, ignore_health=True)
    wording = RequestMessages(table, tree, bare, QuotaUsage(tree))
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    fresh = PlannerCache(
        snapshot=replace(snapshot, running=(), pending=(), nominations=()),
        table=table,
        tree=tree,
        request_cache=RequestCache(table, tree, flavors),
        running={},
        pending={},
        infeasible={},
        leaves={},
        free_now=FreeCapacity(masks, table.usable.copy()),
        free_later=FreeCapacity(masks, table.usable.copy()),
        messages=wording,
        feasibility=Feasibility(wording, ideal),
        usage_now=QuotaUsage(tree),
        usage_later=QuotaUsage(tree),
        releases=ExpectedReleases.of((), len(table.columns)),
        nominations={},
        last_waits={},
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
    requests, infeasible, leaves = _update_pending(snapshot, previous)
    return replace(
        previous,
        snapshot=snapshot,
        running=running_by_uid,
        pending=requests,
        infeasible=infeasible,
        leaves=leaves,
        free_now=now,
        free_later=later,
        usage_now=usage_now,
        usage_later=usage_later,
        releases=releases,
        last_waits=_drop_started(previous.last_waits, requests),
        nominations={
            hold.gang_uid: previous.nominations[hold.gang_uid]
            for hold in snapshot.nominations
            if hold.gang_uid in previous.nominations
        },
    )


def _drop_started(last_waits: dict[str, Wait], pending: dict[str, PendingGang]) -> dict[str, Wait]:
    """The last waits of gangs that are still pending; a copy to write on."""
    if len(last_waits) <= len(pending):
        return last_waits.copy()  # started gangs are at most as many as new ones: not worth a pass over all
    return {uid: wait for uid, wait in last_waits.items() if uid in pending}


def _update_pending(
    snapshot: Snapshot, previous: PlannerCache
) -> tuple[dict[str, PendingGang], dict[str, UnschedulableReason], dict[int, LeafQueue]]:
    """Pending gangs, infeasible gangs and leaf queues, updated with gangs that came and went."""
    if snapshot.pending is previous.snapshot.pending:
        return previous.pending, previous.infeasible, previous.leaves
    removed, added = _added_and_removed(previous.snapshot.pending, snapshot.pending)
    requests, known = previous.pending.copy(), previous.infeasible.copy()
    removed_entries = [requests.pop(gang.uid) for gang in removed]
    for gang in removed:
        known.pop(gang.uid, None)
    new = [PendingGang.of(gang, previous.request_cache.request(gang)) for gang in added]
    for waiting in new:
        requests[waiting.gang.uid] = waiting
        why = previous.feasibility.reason(waiting.request) or priority_too_high(
            previous.tree, waiting.gang, waiting.request
        )
        if why is not None:
            known[waiting.gang.uid] = why
    infeasible = {gang.uid: known[gang.uid] for gang in snapshot.pending if gang.uid in known}
    return requests, infeasible, update_leaves(previous.leaves, removed_entries, new)


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


def gang_usage(table: NodeTable, tree: QueueTree, running: RunningGang) -> GangUsage:
    """What a running gang takes and charges."""
    gang, queue = running.gang, tree.index.get(running.gang.queue, -1)
    load, amounts = (
        node_usage_of_placement(table, gang, running.placement),
        quota_of_placement(tree, queue, gang, running.placement),
    )
    later, back = None, running.retained_until
    if running.state == "admitted" or running.retained_placement:
        running_by_uid = running.state == "admitted"
        bound = running.release_deadline if back is None else latest_release(gang, back)
        later = ExpectedRelease(
            uid=gang.uid,
            release_at=math.inf if bound is None else bound,
            since=running.admitted_at if back is None else back,
            tiebreak=tiebreak_of(gang.uid),
            node_usage=load if running_by_uid else node_usage_of_placement(table, gang, running.retained_placement),
            queue=queue,
            amounts=amounts if running_by_uid else quota_of_placement(tree, queue, gang, running.retained_placement),
            priority=gang.priority,
            preemptible=running_by_uid or back is not None,  # retained capacity can be preempted, like a nomination
        )
    elastic = any(role.min_replicas < role.replicas for role in gang.roles)
    return GangUsage(running, queue, load, amounts, later, elastic)


def quota_of_placement(tree: QueueTree, queue: int, gang: Gang, placement: Placement) -> CellAmounts:
    """What a placement charges to a queue."""
    if queue < 0:
        return ()
    request_of = {role.name: role.request for role in gang.roles}
    total: dict[int, int] = {}
    for part in placement:
        for cell, amount in tree.cell_amounts(queue, part.flavor, request_of[part.role]):
            total[cell] = total.get(cell, 0) + amount * part.replicas
    return tuple(total.items())


def node_usage_of_placement(table: NodeTable, gang: Gang, placement: Placement) -> NodeUsage:
    """What a placement takes from the nodes that still exist."""
    if len(placement) == 1 and len(placement[0].nodes) == 1:  # fast path: thousands of gangs are on one node
        return _node_usage_on_one_node(table, gang, placement[0])
    request_of = {role.name: table.to_row(role.request) for role in gang.roles}
    pods: dict[tuple[int, str], int] = {}
    for part in placement:
        for node, count in part.nodes:
            row = table.row_of.get(node)
            if row is not None:
                pods[row, part.role] = pods.get((row, part.role), 0) + count
    rows = np.array(sorted({row for row, _ in pods}), dtype=np.int64)
    amounts = np.zeros((len(rows), len(table.columns)), dtype=np.int64)
    place = {int(row): i for i, row in enumerate(rows)}
    for (row, role), count in pods.items():
        amounts[place[row]] += count * request_of[role]
    return NodeUsage(rows, amounts)


def _node_usage_on_one_node(table: NodeTable, gang: Gang, part: RolePlacement) -> NodeUsage:
    ((node, count),) = part.nodes
    row = table.row_of.get(node)
    if row is None:
        return NodeUsage(np.zeros(0, dtype=np.int64), np.zeros((0, len(table.columns)), dtype=np.int64))
    request = next(role.request for role in gang.roles if role.name == part.role)
    return NodeUsage(np.array([row], dtype=np.int64), count * table.to_row(request)[None, :])
