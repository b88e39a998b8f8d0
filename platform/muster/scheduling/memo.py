"""What a plan works out about a snapshot, kept for the next plan.

A memo holds no decision, only facts: arrays of nodes, free room, charges, shapes. Each is a function of the objects it
was worked out from, so it is carried over where those objects are the same ones, and brought up to date where few
changed. That is why a plan with a memo equals the plan without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from muster.model import Gang, Placement, RolePlacement, Running, Snapshot, Wait
from muster.quota import Amounts, Charges, QueueTree, queue_tree
from muster.scheduling.departures import Departure, Departures, gone_by, tie_of
from muster.scheduling.leaves import Leaf, Waiting, leaves_changed
from muster.scheduling.nodes import NodeTable, node_table
from muster.scheduling.refuse import Refusal, Verdicts, too_high
from muster.scheduling.room import Load, Masks, Room
from muster.scheduling.shape import Shapes
from muster.scheduling.wording import Wording

if TYPE_CHECKING:
    from muster.scheduling.holds import Held

T = TypeVar("T")

SPARE = 256
"""So many requests more than twice the gangs that are there are remembered: with more, everything is worked out anew,
for every plan looks at all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Stay:
    """A running gang: what it takes from the nodes, and what it charges to its queue (-1: its queue is gone).

    `later` is the same once those who are leaving have left: all of it when the gang stays, what it goes on with when
    it is being resized or comes back, None when it leaves for good.
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
    requests: dict[str, Waiting]  # by uid
    never: dict[
        str, Refusal
    ]  # by uid, in the snapshot's order: waiting gangs that could not start even if everybody else left
    leaves: dict[int, Leaf]  # with somebody who waits, by queue
    now: Room  # free of everyone who runs
    later: Room  # free once those who are leaving have left
    wording: Wording
    verdicts: Verdicts
    charged: Charges
    staying: Charges  # charged once those who are leaving have left
    departures: Departures  # of those who stay for now
    held: dict[str, Held]  # by uid of the gang; holds that were looked at
    told: dict[str, Wait]  # by uid; what was said last, to be said again by the same object where nothing has changed


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
    if memo and same_nodes and same_queues and not _overgrown(snapshot, memo):
        return _carried_over(snapshot, memo)
    masks = Masks(table)
    ideal = Room(masks, table.empty, ideal=True)
    bare = ideal if table.bare is table.empty else Room(masks, table.bare, ideal=True)
    wording = Wording(table, tree, bare, Charges(tree))
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    fresh = Memo(
        snapshot=replace(snapshot, running=(), waiting=(), holds=()),
        table=table,
        tree=tree,
        shapes=Shapes(table, tree, flavors),
        stays={},
        requests={},
        never={},
        leaves={},
        now=Room(masks, table.empty.copy()),
        later=Room(masks, table.empty.copy()),
        wording=wording,
        verdicts=Verdicts(wording, ideal),
        charged=Charges(tree),
        staying=Charges(tree),
        departures=Departures.of((), len(table.columns)),
        held={},
        told={},
    )
    return _carried_over(snapshot, fresh)


def _overgrown(snapshot: Snapshot, memo: Memo) -> bool:
    """Tell whether most of what is remembered is of gangs that are gone."""
    there = len(snapshot.waiting) + len(snapshot.running) + len(snapshot.holds)
    return len(memo.shapes) > 2 * there + SPARE


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Are these the very same objects?"""
    return old is new or (len(old) == len(new) and all(map(_is, old, new)))


def _is(old: object, new: object) -> bool:
    return old is new


def _difference(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """What is in the old only, and what is in the new only: the very same objects are in both."""
    if old is new:
        return [], []
    before, after = set(map(id, old)), set(map(id, new))
    return [one for one in old if id(one) not in after], [one for one in new if id(one) not in before]


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
    requests, never, leaves = _waiting(snapshot, memo)
    return replace(
        memo,
        snapshot=snapshot,
        stays=stays,
        requests=requests,
        never=never,
        leaves=leaves,
        now=now,
        later=later,
        charged=charged,
        staying=staying,
        departures=departures,
        told=_still(memo.told, requests),
        held={hold.gang: memo.held[hold.gang] for hold in snapshot.holds if hold.gang in memo.held},
    )


def _still(told: dict[str, Wait], requests: dict[str, Waiting]) -> dict[str, Wait]:
    """What was told to those who still wait; a copy to write on."""
    if len(told) <= len(requests):
        return told.copy()  # who is gone since is as few as have come: no need to look for them each time
    return {uid: wait for uid, wait in told.items() if uid in requests}


def _waiting(snapshot: Snapshot, memo: Memo) -> tuple[dict[str, Waiting], dict[str, Refusal], dict[int, Leaf]]:
    """What is known of who waits, brought up to date with who came and went."""
    if snapshot.waiting is memo.snapshot.waiting:
        return memo.requests, memo.never, memo.leaves
    gone, come = _difference(memo.snapshot.waiting, snapshot.waiting)
    requests, known = memo.requests.copy(), memo.never.copy()
    left = [requests.pop(gang.uid) for gang in gone]
    for gang in gone:
        known.pop(gang.uid, None)
    new = [Waiting.of(gang, memo.shapes.request(gang)) for gang in come]
    for waiting in new:
        requests[waiting.gang.uid] = waiting
        why = memo.verdicts.of(waiting.request) or too_high(memo.tree, waiting.gang, waiting.request)
        if why is not None:
            known[waiting.gang.uid] = why
    never = {gang.uid: known[gang.uid] for gang in snapshot.waiting if gang.uid in known}
    return requests, never, leaves_changed(memo.leaves, left, new)


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
    later, back = None, running.kept_until
    if running.state == "admitted" or running.keeps:
        stays = running.state == "admitted"
        bound = running.release_bound if back is None else gone_by(gang, back)
        later = Departure(
            uid=gang.uid,
            by=math.inf if bound is None else bound,
            since=running.admitted_at if back is None else back,
            tie=tie_of(gang.uid),
            load=load if stays else placed_load(table, gang, running.keeps),
            queue=queue,
            amounts=amounts if stays else charge_of(tree, queue, gang, running.keeps),
            priority=gang.priority,
            settled=stays or back is not None,  # what it keeps can be taken over, as a hold can
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
