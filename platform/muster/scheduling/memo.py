"""What a plan works out about a snapshot, kept for the next plan.

A memo holds no decision, only facts: arrays of nodes, free room, charges, shapes. Each is a function of the objects it
was worked out from, so it is carried over where those objects are the same ones, and brought up to date where few
changed. That is why a plan with a memo equals the plan without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from muster.model import Gang, Placement, RolePlacement, Running, Snapshot
from muster.quota import Amounts, Charges, QueueTree, queue_tree
from muster.scheduling.departures import Departure, Departures, tie_of
from muster.scheduling.nodes import NodeTable, node_table
from muster.scheduling.refuse import Verdicts
from muster.scheduling.room import Load, Masks, Room
from muster.scheduling.shape import Request, Shapes

if TYPE_CHECKING:
    from muster.scheduling.holds import Held


@dataclass(frozen=True, slots=True, eq=False)
class Stay:
    """A running gang: what it takes from the nodes, and what it charges to its queue (-1: its queue is gone).

    `later` is the same once those who are leaving have left: all of it when the gang stays, what it goes on with when
    it is being resized, None when it leaves.
    """

    running: Running
    queue: int
    load: Load
    amounts: Amounts
    later: Departure | None
    elastic: bool

    @property
    def settled(self) -> bool:
        """Tell whether it stays as it is, as far as anyone knows."""
        return self.running.state == "admitted"


@dataclass(frozen=True, slots=True, eq=False)
class Memo:
    """Facts about one snapshot. Never changed once its plan is made, but for lazily counted pod kinds."""

    snapshot: Snapshot
    table: NodeTable
    tree: QueueTree
    shapes: Shapes
    stays: dict[str, Stay]  # by uid
    requests: dict[str, tuple[Gang, Request]]  # of waiting gangs, by uid
    now: Room  # free of everyone who runs
    later: Room  # free once those who are leaving have left
    ideal: Room  # with nobody on the nodes, and all of them up
    verdicts: Verdicts
    charged: Charges
    staying: Charges  # charged once those who are leaving have left
    departures: Departures  # of those who stay for now
    held: dict[str, Held]  # by uid of the gang; holds that were looked at


def read(snapshot: Snapshot, memo: Memo | None = None) -> Memo:
    """Work out the facts about a snapshot, or carry them over from an earlier one."""
    before = memo.snapshot if memo else None
    same_flavors = before is not None and _same(before.flavors, snapshot.flavors)
    same_nodes = (
        before is not None and same_flavors and before.avoid == snapshot.avoid and _same(before.nodes, snapshot.nodes)
    )
    same_queues = before is not None and _same(before.queues, snapshot.queues)
    table = memo.table if memo and same_nodes else node_table(snapshot.nodes, snapshot.flavors, snapshot.avoid)
    tree = memo.tree if memo and same_queues else queue_tree(snapshot.queues)
    if memo and same_nodes and same_queues:
        return _carried_over(snapshot, memo)
    masks = Masks(table)
    ideal = Room(masks, table.empty, ideal=True)
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    fresh = Memo(
        snapshot=replace(snapshot, running=(), waiting=(), holds=()),
        table=table,
        tree=tree,
        shapes=Shapes(table, tree, flavors),
        stays={},
        requests={},
        now=Room(masks, table.empty.copy()),
        later=Room(masks, table.empty.copy()),
        ideal=ideal,
        verdicts=Verdicts(table, tree, ideal, Charges(tree)),
        charged=Charges(tree),
        staying=Charges(tree),
        departures=Departures.of((), len(table.columns)),
        held={},
    )
    return _carried_over(snapshot, fresh)


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Are these the very same objects?"""
    return old is new or (len(old) == len(new) and all(map(_is, old, new)))


def _is(old: object, new: object) -> bool:
    return old is new


def _difference(old: tuple[Running, ...], new: tuple[Running, ...]) -> tuple[list[Running], list[Running]]:
    """Who is in the old only, and who is in the new only: the very same objects are in both."""
    if old is new:
        return [], []
    before, after = set(map(id, old)), set(map(id, new))
    return [r for r in old if id(r) not in after], [r for r in new if id(r) not in before]


def _carried_over(snapshot: Snapshot, memo: Memo) -> Memo:
    """The memo brought up to date with who waits and who runs."""
    now, later = memo.now.successor(), memo.later.successor()
    charged, staying = memo.charged.fork(), memo.staying.fork()
    stays = dict(memo.stays)
    left, come = _difference(memo.snapshot.running, snapshot.running)
    ties: list[int] = []
    for running in left:
        stay = stays.pop(running.gang.uid)
        _count(stay, 1, now, later, charged, staying)
        if stay.later is not None:
            ties.append(stay.later.tie)
    arrived: list[Departure] = []
    for running in come:
        stay = stays[running.gang.uid] = stay_of(memo.table, memo.tree, running)
        _count(stay, -1, now, later, charged, staying)
        if stay.later is not None:
            arrived.append(stay.later)
    departures = memo.departures.without(ties).plus(Departures.of(arrived, len(memo.table.columns)))
    requests: dict[str, tuple[Gang, Request]] = {}
    for gang in snapshot.waiting:
        seen = memo.requests.get(gang.uid)
        requests[gang.uid] = seen if seen is not None and seen[0] is gang else (gang, memo.shapes.request(gang))
    return replace(
        memo,
        snapshot=snapshot,
        stays=stays,
        requests=requests,
        now=now,
        later=later,
        charged=charged,
        staying=staying,
        departures=departures,
        held={hold.gang: memo.held[hold.gang] for hold in snapshot.holds if hold.gang in memo.held},
    )


def _count(stay: Stay, sign: int, now: Room, later: Room, charged: Charges, staying: Charges) -> None:
    """Give a stay's room and charge back (+1) or take it (-1)."""
    now.add(stay.load, sign)
    if stay.queue >= 0:
        charged.charge(stay.queue, stay.amounts, -sign)
    if stay.later is not None:
        later.add(stay.later.load, sign)
        if stay.queue >= 0:
            staying.charge(stay.queue, stay.later.amounts, -sign)


def stay_of(table: NodeTable, tree: QueueTree, running: Running) -> Stay:
    """What a running gang takes and charges."""
    gang, queue = running.gang, tree.index.get(running.gang.queue, -1)
    load, amounts = placed_load(table, gang, running.placement), charge_of(tree, queue, gang, running.placement)
    later = None
    if running.state == "admitted" or running.keeps:
        settled = running.state == "admitted"
        later = Departure(
            uid=gang.uid,
            by=math.inf if running.release_bound is None else running.release_bound,
            since=running.admitted_at,
            tie=tie_of(gang.uid),
            load=load if settled else placed_load(table, gang, running.keeps),
            queue=queue,
            amounts=amounts if settled else charge_of(tree, queue, gang, running.keeps),
            priority=gang.priority,
            settled=settled,
        )
    elastic = any(role.min_replicas < role.replicas for role in gang.roles)
    return Stay(running, queue, load, amounts, later, elastic)


def charge_of(tree: QueueTree, queue: int, gang: Gang, placement: Placement) -> Amounts:
    """What a placement charges to a queue."""
    if queue < 0:
        return ()
    request_of = {role.name: role.request for role in gang.roles}
    total: dict[int, int] = {}
    for part in placement:
        for cell, amount in tree.amounts(queue, part.flavor, request_of[part.role]):
            total[cell] = total.get(cell, 0) + amount * part.replicas
    return tuple(total.items())


def placed_load(table: NodeTable, gang: Gang, placement: Placement) -> Load:
    """What a placement takes from the nodes that still exist."""
    if len(placement) == 1 and len(placement[0].nodes) == 1:  # thousands of gangs lie on one node
        return _on_one_node(table, gang, placement[0])
    request_of = {role.name: table.amounts(role.request) for role in gang.roles}
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
    return Load(rows, amounts)


def _on_one_node(table: NodeTable, gang: Gang, part: RolePlacement) -> Load:
    ((node, count),) = part.nodes
    row = table.row_of.get(node)
    if row is None:
        return Load(np.zeros(0, dtype=np.int64), np.zeros((0, len(table.columns)), dtype=np.int64))
    request = next(role.request for role in gang.roles if role.name == part.role)
    return Load(np.array([row], dtype=np.int64), count * table.amounts(request)[None, :])
