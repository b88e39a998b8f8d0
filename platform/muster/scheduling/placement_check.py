"""Whether the pods of a placement may still start on its nodes, capacity aside.

A placement is decided once and used later: when pods are created after a crash or a restart backoff, or for a
nomination. Meanwhile nodes may be cordoned, tainted, relabelled or lost. The rules are those of placing (`NodeRule`).
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.model import FlavorInfo, Gang, NodeInfo, Placement, Role
from muster.scheduling.nodes import node_rule


def placement_error(
    gang: Gang,
    placement: Placement,
    nodes: Mapping[str, NodeInfo],
    flavors: Mapping[str, FlavorInfo],
    excluded_nodes: frozenset[str] = frozenset(),
) -> str:
    """Why not, as a sentence; "" if they may. `placement` may be a part of the gang's; `nodes` and `flavors` are by
    name; `excluded_nodes` are excluded for all gangs. Nodes that are not in `nodes` are skipped."""
    roles = {role.name: role for role in gang.roles}
    domains: dict[tuple[str | None, str], str] = {}  # by the role that has a domain of its own, and flavor
    for part in placement:
        role, flavor = roles.get(part.role), flavors.get(part.flavor)
        if role is None:
            continue
        if flavor is None:
            return f"flavor {part.flavor} does not exist"
        rule, level = node_rule(role, flavor, gang.excluded_nodes | excluded_nodes), _required_level(gang, role, flavor)
        for name, _ in part.nodes:
            node = nodes.get(name)
            if node is None:
                continue
            if not node.schedulable:
                return f"node {name} is cordoned or not ready"
            if name in rule.excluded_nodes:
                return f"node {name} is avoided"
            if node.flavor != flavor.name:
                return f"node {name} is not of flavor {flavor.name}"
            if not rule.accepts([node])[0]:
                return f"node {name} has taints or labels that pods of role {role.name} do not accept"
            if level is not None:
                group = (None if role.topology is None else role.name, flavor.name)
                domain = node.domains[level] if level < len(node.domains) else ""
                if not domain or domains.setdefault(group, domain) != domain:
                    return f"node {name} is not in the {flavor.levels[level]} of the others"
    return ""


def _required_level(gang: Gang, role: Role, flavor: FlavorInfo) -> int | None:
    """The index of the topology level that its pods must share."""
    topology = gang.topology if role.topology is None else role.topology
    if topology is None or topology.required not in flavor.levels:
        return None
    return flavor.levels.index(topology.required)
