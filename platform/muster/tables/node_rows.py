"""The nodes as rows: flavor, what they have, what gangs take of it, whose pods they run (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from muster import model
from muster.cluster import NodeView
from muster.quantity import format_quantity

VIRTUAL_NODE_LABEL = "muster.dev/virtual"
"""The label of a node that is a slot of one host."""


def node_rows(
    nodes: Iterable[NodeView], snapshot: model.Snapshot | None, pods: Mapping[str, Collection[str]]
) -> list[dict[str, Any]]:
    """One row a node. `snapshot` is the newest one planned on, `pods` has names of pods by node."""
    flavors = {node.name: node.flavor for node in snapshot.nodes} if snapshot else {}
    used = _usage_by_node(snapshot)
    return [
        {
            "name": node.name,
            "flavor": flavors.get(node.name),
            "virtual": VIRTUAL_NODE_LABEL in node.labels,
            "ready": node.ready,
            "cordoned": node.cordoned,
            "draining": node.draining,
            "labels": dict(node.labels),
            "allocatable": _format_resources(node.allocatable),
            "used": _format_resources(used.get(node.name, model.Resources())),
            "pods": sorted(pods.get(node.name, ())),
        }
        for node in nodes
    ]


def _format_resources(amounts: model.Resources) -> dict[str, str]:
    return {name: format_quantity(amount, name) for name, amount in amounts}


def _usage_by_node(snapshot: model.Snapshot | None) -> dict[str, model.Resources]:
    """What running gangs take of each node."""
    used: dict[str, model.Resources] = {}
    for one in snapshot.running if snapshot else ():
        requests = {role.name: role.request for role in one.gang.roles}
        for part in one.placement:
            for node, count in part.nodes:
                taken = requests.get(part.role, model.Resources()).times(count)
                used[node] = used.get(node, model.Resources()).plus(taken)
    return used
