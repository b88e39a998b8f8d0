"""May the pods of a placement still start where they are placed, resources aside?

A placement is decided once and used later: by a gang whose pods are created after a crash or a restart's backoff, and
by one for which it was held. Meanwhile nodes are cordoned, tainted, relabelled, lost. This asks what placing asks, by
the same rules (`NodeRule`).
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
    """Why not, as a sentence; empty where they may. `placement` may be a part of the gang's; `nodes` and `flavors` are
    by name, and `avoid` are nodes that every gang avoids. Nodes that are not among `nodes` are passed over."""
    roles = {role.name: role for role in gang.roles}
    domains: dict[tuple[str | None, str], str] = {}  # by the role that is alone in its domain, and flavor
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
    """The index of the topology level that its pods have to share."""
    topology = gang.topology if role.topology is None else role.topology
    if topology is None or topology.required not in flavor.levels:
        return None
    return flavor.levels.index(topology.required)
