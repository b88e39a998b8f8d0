"""Capacity nominated for one gang: freed by preemption, or retained across a restart.

A nomination is charged like a running gang until its gang is admitted. Its placement is validated first, since nodes
may have been lost; a nomination for a part of the gang is completed with further pods in the same domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.model import Gang, Nomination, Placement
from muster.quota import CellAmounts, QuotaUsage
from muster.scheduling.capacity import FreeCapacity, ReservedView
from muster.scheduling.fit import FixedPods, GangAssignment, RoleAssignment, fit
from muster.scheduling.gang_requests import QueueRequest
from muster.scheduling.placement_check import placement_error
from muster.scheduling.planner_cache import PlannerCache, node_usage_of_placement, quota_of_placement
from muster.scheduling.releases import ExpectedRelease, latest_release, tiebreak_of


@dataclass(frozen=True, slots=True, eq=False)
class ActiveNomination:
    """A valid nomination, with what it takes and charges until its gang's latest release."""

    gang: Gang
    request: QueueRequest
    nomination: Nomination
    release: ExpectedRelease
    covers_minimum: bool  # whether it covers the gang's minimum
    node_count: int  # number of its nodes
    option: int | None  # the option whose flavors it uses; None if the gang may not use them (any more)
    nodes_valid: bool  # whether all its nodes exist and accept its pods, capacity aside


def active_nominations(cache: PlannerCache) -> Iterator[ActiveNomination]:
    """The valid nominations: not expired, of gangs that are pending, restarting or in backoff."""
    for hold in cache.snapshot.nominations:
        if hold.expires_at > cache.snapshot.now and (gang := _nominated_gang(cache, hold)) is not None:
            request = (
                cache.pending[gang.uid].request if gang.uid in cache.pending else cache.request_cache.request(gang)
            )
            cached = cache.nominations.get(hold.gang_uid)
            if (
                cached is None
                or cached.nomination is not hold
                or cached.request is not request
                or cached.gang is not gang
            ):
                cached = cache.nominations[hold.gang_uid] = _active_nomination(cache, hold, gang, request)
            yield cached


def _active_nomination(
    cache: PlannerCache, nomination: Nomination, gang: Gang, request: QueueRequest
) -> ActiveNomination:
    load = node_usage_of_placement(cache.table, gang, nomination.placement)
    amounts = quota_of_placement(cache.tree, request.queue, gang, nomination.placement)
    by, tie = latest_release(gang, nomination.expires_at), tiebreak_of(gang.uid)
    taken = ExpectedRelease(gang.uid, by, nomination.expires_at, tie, load, request.queue, amounts)
    lacking = {role.name: role.min_replicas for role in gang.roles}
    for part in nomination.placement:
        lacking[part.role] = lacking.get(part.role, 0) - part.replicas
    names = {node for part in nomination.placement for node, _ in part.nodes}
    nodes = {cache.table.nodes[row].name: cache.table.nodes[row] for row in load.rows}
    flavors = {name: span.flavor for name, span in cache.table.flavors.items()}
    nodes_valid = len(names) == len(load.rows) and not placement_error(gang, nomination.placement, nodes, flavors)
    covers_minimum = all(pods <= 0 for pods in lacking.values())
    option = next(request.gang_request.options_of(nomination.placement), None)
    return ActiveNomination(gang, request, nomination, taken, covers_minimum, len(names), option, nodes_valid)


def _nominated_gang(cache: PlannerCache, nomination: Nomination) -> Gang | None:
    """The gang of a nomination; None when it is running (the nomination is over) or unknown."""
    if nomination.gang_uid in cache.pending:
        return cache.pending[nomination.gang_uid].gang
    gang_usage = cache.running.get(nomination.gang_uid)
    if gang_usage is None:
        return nomination.nominated_gang
    return gang_usage.running.gang if gang_usage.release is None else None


def nomination_fits(cache: PlannerCache, active: ActiveNomination, capacity: FreeCapacity, usage: QuotaUsage) -> bool:
    """Whether the whole gang fits its nominated placement, with this capacity and quota usage."""
    return (
        active.covers_minimum
        and _has_capacity(cache, active, capacity)
        and usage.fits(active.request.queue, active.release.amounts)
    )


def fits_while_reserved(
    cache: PlannerCache, active: ActiveNomination, capacity: FreeCapacity, usage: QuotaUsage
) -> bool:
    """Whether capacity and quota that already include this nomination are not overdrawn."""
    if (
        not active.covers_minimum
        or not _nodes_usable(cache, active)
        or (capacity.free[active.release.node_usage.rows] < 0).any()
    ):
        return False
    return all(usage.available(active.request.queue, cell) >= 0 for cell, amount in active.release.amounts if amount)


def complete_placement(
    cache: PlannerCache, active: ActiveNomination, capacity: FreeCapacity, usage: QuotaUsage
) -> tuple[int, GangAssignment, CellAmounts] | None:
    """Complete the nomination of a part of a gang to its minimum: option, placement (with the load of all pods) and
    quota; None if the other pods do not fit."""
    if active.covers_minimum or not len(active.release.node_usage.rows) or not _has_capacity(cache, active, capacity):
        return None
    gang_request = active.request.gang_request
    placed = placed_pods(cache, active.gang, active.nomination.placement)
    sizes = tuple(
        max(size, placed[role].pods if role in placed else 0) for role, size in enumerate(gang_request.min_sizes)
    )
    for index in gang_request.options_of(active.nomination.placement):
        option, amounts = gang_request.options[index], active.request.quota_at(index, sizes)
        if not usage.fits(active.request.queue, amounts):
            continue
        place = fit(cache.table, option, sizes, ReservedView(capacity, cache.table, active.release.node_usage), placed)
        if place is not None:
            return index, GangAssignment(place.roles, place.node_usage.joined(active.release.node_usage)), amounts
    return None


def placed_pods(cache: PlannerCache, gang: Gang, placement: Placement) -> FixedPods:
    """A placement as assignments by role, without pods on nodes that no longer exist."""
    index = {role.name: i for i, role in enumerate(gang.roles)}
    placed: dict[int, RoleAssignment] = {}
    for part in placement:
        pods: dict[int, int] = {}
        for node, count in part.nodes:
            row = cache.table.row_of.get(node)
            if row is not None:
                pods[row] = pods.get(row, 0) + count
        if pods and part.role in index:
            rows = np.array(sorted(pods), dtype=np.int64)
            placed[index[part.role]] = RoleAssignment(rows, np.array([pods[int(row)] for row in rows], dtype=np.int64))
    return placed


def _has_capacity(cache: PlannerCache, active: ActiveNomination, capacity: FreeCapacity) -> bool:
    """Whether all nominated nodes exist, may be used and have the capacity."""
    load = active.release.node_usage
    return _nodes_usable(cache, active) and bool((capacity.free[load.rows] >= load.amounts).all())


def _nodes_usable(cache: PlannerCache, active: ActiveNomination) -> bool:
    return (
        active.nodes_valid
        and active.option is not None
        and bool(cache.table.schedulable[active.release.node_usage.rows].all())
    )


def waiting_message(cache: PlannerCache, active: ActiveNomination) -> str:
    """What a nominated gang waits for, as a sentence."""
    running = cache.running
    victims = [
        running[uid].running.gang.name
        for uid in active.nomination.victims
        if uid in running and not running[uid].is_admitted
    ]
    held_nodes = "1 node nominated" if active.node_count == 1 else f"{active.node_count} nodes nominated"
    return f"{held_nodes}; waiting for {join_names(victims) or 'pods still on them'} to terminate"


def join_names(names: list[str]) -> str:
    """Up to three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
