"""Which placements, written in an earlier cycle, have become invalid before their pods were bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.model import Gang, Placement
from muster.scheduling import PlannerCache, placement_error


def invalid_placements(cache: PlannerCache, unbound: Mapping[str, Placement]) -> dict[str, str]:
    """Which of these admitted gangs do not fit their placement, and why, as a sentence.

    Between admission and binding an operator may have been down, the API server may have refused the pods, or a restart
    may have waited for its backoff; meanwhile other pods take capacity that looks free to them, and nodes are cordoned
    or tainted. A gang that no longer fits would run incompletely until its start timeout, in capacity that no other
    gang may use. Bound pods do not matter here: a running pod stays on a cordoned node.

    `cache` is that of the plan on the present snapshot. `unbound` has, by uid, the part of the placement whose pods are
    not bound yet. Of several gangs that do not fit together those admitted last are returned.
    """
    usages = [cache.running[uid] for uid in unbound if uid in cache.running and cache.running[uid].is_admitted]
    if not usages:
        return {}
    snapshot, table = cache.snapshot, cache.table
    names = {node for usage in usages for part in unbound[usage.running.gang.uid] for node, _ in part.nodes}
    nodes = {node.name: node for node in snapshot.nodes if node.name in names}
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    free = cache.free_now.free.copy()  # beside all running gangs; negative where they exceed a node
    found: dict[str, str] = {}
    for usage in sorted(usages, key=lambda one: (-one.running.admitted_at, one.running.gang.uid)):
        gang = usage.running.gang
        part = unbound[gang.uid]
        why = placement_error(gang, part, nodes, flavors, snapshot.excluded_nodes)
        for name, resource in () if why else _requested_of_nodes(gang, part):
            row, column = table.row_of.get(name), table.columns.get(resource)
            if row is not None and (column is None or free[row, column] < 0):
                why = f"other pods use {resource} of node {name} that is assigned to it"
                break
        if why:
            found[gang.uid] = why
            free[usage.node_usage.rows] += usage.node_usage.amounts
    return found


def _requested_of_nodes(gang: Gang, placement: Placement) -> Iterable[tuple[str, str]]:
    """Each node of a placement with each resource that is requested of it."""
    requests = {role.name: role.request for role in gang.roles}
    for part in placement:
        for name, _ in part.nodes:
            for resource, _ in requests.get(part.role, ()):
                yield name, resource
