"""Room that was promised durably: freed by eviction, or kept across a restart, for one gang.

A hold is charged like a running gang until its gang starts on it. Its placement is fitted again first, for nodes may
have been lost since; a hold that covers a part of the gang is completed beside that part, in the same domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.model import Gang, Hold, Placement
from muster.quota import Amounts, Charges
from muster.scheduling.departures import Departure, gone_by, tie_of
from muster.scheduling.fit import Fit, Kept, Spread, fit
from muster.scheduling.memo import Memo, charge_of, placed_load
from muster.scheduling.placed import placement_error
from muster.scheduling.room import Less, Room
from muster.scheduling.shape import Request


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A hold that counts, with what it takes and charges until its gang is gone at the latest."""

    gang: Gang
    request: Request
    hold: Hold
    taken: Departure
    whole: bool  # does it cover the gang's minimum?
    nodes: int  # how many it is on
    there: bool  # do all its nodes exist and take its pods, resources aside?


def held_room(facts: Memo) -> Iterator[Held]:
    """The holds that count: not expired, of gangs that wait, restart or back off."""
    for hold in facts.snapshot.holds:
        if hold.expires_at > facts.snapshot.now and (gang := _holder(facts, hold)) is not None:
            request = facts.requests[gang.uid].request if gang.uid in facts.requests else facts.shapes.request(gang)
            known = facts.held.get(hold.gang)
            if known is None or known.hold is not hold or known.request is not request or known.gang is not gang:
                known = facts.held[hold.gang] = _held(facts, hold, gang, request)
            yield known


def _held(facts: Memo, hold: Hold, gang: Gang, request: Request) -> Held:
    load = placed_load(facts.table, gang, hold.placement)
    amounts = charge_of(facts.tree, request.queue, gang, hold.placement)
    by, tie = gone_by(gang, hold.expires_at), tie_of(gang.uid)
    taken = Departure(gang.uid, by, hold.expires_at, tie, load, request.queue, amounts)
    lacking = {role.name: role.min_replicas for role in gang.roles}
    for part in hold.placement:
        lacking[part.role] = lacking.get(part.role, 0) - part.replicas
    names = {node for part in hold.placement for node, _ in part.nodes}
    nodes = {facts.table.nodes[row].name: facts.table.nodes[row] for row in load.rows}
    flavors = {name: span.flavor for name, span in facts.table.flavors.items()}
    there = len(names) == len(load.rows) and not placement_error(gang, hold.placement, nodes, flavors)
    return Held(gang, request, hold, taken, all(pods <= 0 for pods in lacking.values()), len(names), there)


def _holder(facts: Memo, hold: Hold) -> Gang | None:
    """The gang of a hold; None when it runs (its hold is over) or is not known."""
    if hold.gang in facts.requests:
        return facts.requests[hold.gang].gang
    stay = facts.stays.get(hold.gang)
    if stay is None:
        return hold.holder
    return stay.running.gang if stay.later is None else None


def stands(facts: Memo, held: Held, room: Room, charges: Charges) -> bool:
    """Tell whether the whole gang fits where its room is held, with this room and these charges."""
    return held.whole and _fits(facts, held, room) and charges.allows(held.request.queue, held.taken.amounts)


def stands_aside(facts: Memo, held: Held, room: Room, charges: Charges) -> bool:
    """`stands`, of a hold that is set aside: what is left beside it is not overdrawn, neither room nor quota."""
    if not held.whole or not _usable(facts, held) or (room.free[held.taken.load.rows] < 0).any():
        return False
    return all(charges.avail(held.request.queue, cell) >= 0 for cell, amount in held.taken.amounts if amount)


def completed(facts: Memo, held: Held, room: Room, charges: Charges) -> tuple[int, Fit, Amounts] | None:
    """A gang at its minimum, for a hold of only a part of it: pods where room is held, and the others beside them.

    The option, the places (with the load of all pods), and what it charges; None if the others find no room.
    """
    if held.whole or not len(held.taken.load.rows) or not _fits(facts, held, room):
        return None
    shape = held.request.shape
    kept = kept_pods(facts, held.gang, held.hold.placement)
    sizes = tuple(max(size, kept[role].pods if role in kept else 0) for role, size in enumerate(shape.least))
    flavor_of = {part.role: part.flavor for part in held.hold.placement}
    for index, option in enumerate(shape.options):
        same = all(flavor_of.get(r.name, f) == f for r, f in zip(shape.roles, option.flavors, strict=True))
        amounts = held.request.amounts(index, sizes)
        if not same or not charges.allows(held.request.queue, amounts):
            continue
        place = fit(facts.table, option, sizes, Less(room, facts.table, held.taken.load), kept)
        if place is not None:
            return index, Fit(place.spreads, place.load.joined(held.taken.load)), amounts
    return None


def kept_pods(facts: Memo, gang: Gang, placement: Placement) -> Kept:
    """A placement as spreads by role; pods on nodes that no longer exist are left out."""
    index = {role.name: i for i, role in enumerate(gang.roles)}
    kept: dict[int, Spread] = {}
    for part in placement:
        pods: dict[int, int] = {}
        for node, count in part.nodes:
            row = facts.table.row_of.get(node)
            if row is not None:
                pods[row] = pods.get(row, 0) + count
        if pods and part.role in index:
            rows = np.array(sorted(pods), dtype=np.int64)
            kept[index[part.role]] = Spread(rows, np.array([pods[int(row)] for row in rows], dtype=np.int64))
    return kept


def _fits(facts: Memo, held: Held, room: Room) -> bool:
    """Tell whether the held pods fit where they are held: all nodes are there, up, and have the room."""
    load = held.taken.load
    return _usable(facts, held) and bool((room.free[load.rows] >= load.amounts).all())


def _usable(facts: Memo, held: Held) -> bool:
    return held.there and bool(facts.table.up[held.taken.load.rows].all())


def waits_for(facts: Memo, held: Held) -> str:
    """What a gang with a hold waits for, as a sentence."""
    stays = facts.stays
    victims = [stays[uid].running.gang.name for uid in held.hold.victims if uid in stays and not stays[uid].settled]
    held_nodes = "1 node is held for it" if held.nodes == 1 else f"{held.nodes} nodes are held for it"
    return f"{held_nodes}; waits for {named(victims) or 'what is still on them'} to leave"


def named(names: list[str]) -> str:
    """A few names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
