"""Whether an admitted gang still fits its placement, for pods that are not bound yet.

Between admission and binding an operator may have been down, the API server may have refused the pods, or a restart may
have waited for its backoff; meanwhile other pods take capacity that looks free to them, and nodes are cordoned or
tainted. A gang that no longer fits would run incompletely until its start timeout, in capacity that no other gang may
use. Bound pods do not matter here: a running pod stays on a cordoned node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.model import Gang, Placement, Resources, Snapshot
from muster.scheduling import placement_error

_NO_RESOURCES = Resources()


def invalid_placements(snapshot: Snapshot, unbound: Mapping[str, Placement]) -> dict[str, str]:
    """Which of these gangs do not fit their placement, and why, as a sentence.

    `unbound` has, by uid, the part of the placement whose pods are not bound yet. Of several gangs that do not fit
    together those admitted last are returned.
    """
    unbound_gangs = [
        running for running in snapshot.running if running.state == "admitted" and running.gang.uid in unbound
    ]
    if not unbound_gangs:
        return {}
    names = {node for running in unbound_gangs for part in unbound[running.gang.uid] for node, _ in part.nodes}
    nodes = {node.name: node for node in snapshot.nodes if node.name in names}
    flavors = {flavor.name: flavor for flavor in snapshot.flavors}
    taken = {name: node.unmanaged_usage for name, node in nodes.items()}
    for running in snapshot.running:
        for name, amount in _usage_by_node(running.gang, running.placement):
            if name in taken:
                taken[name] = taken[name].plus(amount)
    found: dict[str, str] = {}
    for running in sorted(unbound_gangs, key=lambda running: (-running.admitted_at, running.gang.uid)):
        part = unbound[running.gang.uid]
        why = placement_error(running.gang, part, nodes, flavors, snapshot.excluded_nodes)
        for name, amount in () if why else _usage_by_node(running.gang, part):
            if name in nodes:
                short = (r for r, _ in amount if taken[name].get(r) > nodes[name].allocatable.get(r))
                why = next(
                    (f"other pods use {resource} of node {name} that is assigned to it" for resource in short), why
                )
        if why:
            found[running.gang.uid] = why
            for name, amount in _usage_by_node(running.gang, running.placement):
                if name in taken:
                    taken[name] = taken[name].minus(amount)
    return found


def _usage_by_node(gang: Gang, placement: Placement) -> Iterable[tuple[str, Resources]]:
    """What a placement takes of each node."""
    requests = {role.name: role.request for role in gang.roles}
    for part in placement:
        for name, pods in part.nodes:
            yield name, requests.get(part.role, _NO_RESOURCES).times(pods)
