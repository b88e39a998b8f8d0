"""The nodes of a snapshot as arrays, and which of them a pod accepts.

A plan computes the same for ten thousand nodes again and again: how many of these pods fit this node, rack or
block. Nodes are sorted by flavor and domain once, so every domain is a contiguous range of rows and a question is one
array operation.

A placement is decided once and used later: when pods are created after a crash or a restart backoff, or for a
nomination. Meanwhile nodes may be cordoned, tainted, relabelled or lost; `placement_error` checks it by the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from muster.model import (
    MAX_AMOUNT,
    FlavorInfo,
    Gang,
    MatchExpression,
    NodeInfo,
    NodeTaint,
    NodeToleration,
    Placement,
    Resources,
    Role,
)
from muster.scheduling.node_labels import NodeLabels
from muster.text import closest_match

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """All domains of one topology level in one flavor, in row order.

    The widest tier is the flavor itself (one domain), the narrowest its nodes; the flavor's topology levels lie
    between. Domain `d` consists of the domains `first_child[d]:first_child[d + 1]` of the next tier and of the
    flavor's nodes `first_node[d]:first_node[d + 1]`. A domain without a name has the nodes that lack the level's label;
    it can never be a required domain.
    """

    name: str
    domains: tuple[str, ...]
    first_child: IntArray
    first_node: IntArray
    domain_of_node: IntArray  # domain of each node
    is_named: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class FlavorNodes:
    """The rows `start:stop` of the node table: one flavor's nodes, and their tiers, widest first."""

    flavor: FlavorInfo
    start: int
    stop: int
    tiers: tuple[Tier, ...]

    def tier(self, level: str) -> int | None:
        """Index of the tier of a topology level; None if the flavor does not have the level."""
        return 1 + self.flavor.levels.index(level) if level in self.flavor.levels else None


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """All nodes that have a flavor, as rows; resources are columns."""

    nodes: tuple[NodeInfo, ...]  # in row order
    row_of: dict[str, int]
    columns: dict[str, int]
    flavors: dict[str, FlavorNodes]
    usable: IntArray  # [rows, columns] what gangs may use: allocatable minus unmanaged usage
    allocatable: IntArray  # [rows, columns] allocatable; the same object as above if there are no unmanaged pods
    capacity: IntArray  # [rows, columns] with devices that are not healthy; the same object if there are none
    schedulable: BoolArray  # [rows] schedulable, and not excluded for all gangs

    def unhealthy_devices(self, requested: Collection[tuple[str, str]]) -> list[tuple[str, str, int, int]]:
        """(node, resource, allocatable, of how many) of nodes with devices that are not healthy, of these flavors and
        resources."""
        return [
            (node.name, name, node.allocatable.get(name), node.allocatable.get(name) + amount)
            for node in self.nodes
            for name, amount in node.unhealthy_devices
            if (node.flavor, name) in requested
        ]

    def to_row(self, resources: Resources) -> IntArray:
        """Resources as a row of the table, without those that no node has."""
        row = np.zeros(len(self.columns), dtype=np.int64)
        for name, amount in resources:
            if name in self.columns:
                row[self.columns[name]] = min(amount, MAX_AMOUNT)
        return row


def node_table(nodes: Sequence[NodeInfo], flavors: Iterable[FlavorInfo], excluded_nodes: frozenset[str]) -> NodeTable:
    """Sort the nodes by flavor and domain and put their amounts into columns. Nodes without a flavor are left out: no
    gang is placed there."""
    known = {flavor.name: flavor for flavor in flavors}
    rows = sorted((n for n in nodes if n.flavor in known), key=lambda n: (n.flavor or "", n.domains, n.name))
    columns = {
        name: i
        for i, name in enumerate(sorted({name for n in rows for name, _ in (*n.allocatable, *n.unhealthy_devices)}))
    }
    cuts = [i for i, n in enumerate(rows) if i == 0 or n.flavor != rows[i - 1].flavor] + [len(rows)]
    starts = {rows[start].flavor: (start, stop) for start, stop in pairwise(cuts)}
    by_flavor = {}
    for name, flavor in known.items():
        start, stop = starts.get(name, (0, 0))
        by_flavor[name] = FlavorNodes(flavor, start, stop, _tiers(flavor, rows[start:stop]))
    allocatable = _amounts([n.allocatable for n in rows], columns)
    unmanaged = _amounts([n.unmanaged_usage for n in rows], columns)
    unhealthy = _amounts([n.unhealthy_devices for n in rows], columns)
    return NodeTable(
        nodes=tuple(rows),
        row_of={n.name: i for i, n in enumerate(rows)},
        columns=columns,
        flavors=by_flavor,
        usable=allocatable - unmanaged if unmanaged.any() else allocatable,
        allocatable=allocatable,
        capacity=allocatable + unhealthy if unhealthy.any() else allocatable,
        schedulable=np.array([n.schedulable and n.name not in excluded_nodes for n in rows], dtype=np.bool_),
    )


def _amounts(resources: list[Resources], columns: dict[str, int]) -> IntArray:
    """One row per entry; equal entries are converted once."""
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(resources))}
    table = np.zeros((max(1, len(kinds)), len(columns)), dtype=np.int64)
    for kind, i in kinds.items():
        for name, amount in kind:
            if name in columns:
                table[i, columns[name]] = min(amount, MAX_AMOUNT)
    return table[np.array([kinds[r] for r in resources], dtype=np.int64)]


def _tiers(flavor: FlavorInfo, nodes: list[NodeInfo]) -> tuple[Tier, ...]:
    """The tiers of one flavor's nodes, which are sorted by domain."""
    count = len(nodes)
    keys: list[list[tuple[str, ...]]] = [[()] * count]  # the flavor itself
    for level in range(1, len(flavor.levels) + 1):
        keys.append([(n.domains + ("",) * level)[:level] for n in nodes])
    starts = [[i for i in range(count) if i == 0 or key[i] != key[i - 1]] for key in keys] + [list(range(count))]
    names = ["", *flavor.levels, "node"]
    tiers = []
    for depth, first_nodes in enumerate(starts):
        edges = np.array([*first_nodes, count], dtype=np.int64)
        narrower = np.array([*(starts[depth + 1] if depth + 1 < len(starts) else []), count], dtype=np.int64)
        if depth == 0:
            domains = tuple(flavor.name for _ in first_nodes)
        elif depth == len(starts) - 1:
            domains = tuple(n.name for n in nodes)
        else:
            domains = tuple(str(keys[depth][i][depth - 1]) for i in first_nodes)
        tiers.append(
            Tier(
                name=names[depth],
                domains=domains,
                first_child=np.searchsorted(narrower, edges),
                first_node=edges,
                domain_of_node=np.repeat(np.arange(len(first_nodes), dtype=np.int64), np.diff(edges)),
                is_named=np.array([bool(name) for name in domains], dtype=np.bool_),
            )
        )
    return tuple(tiers)


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Which nodes a pod accepts, capacity aside."""

    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[MatchExpression, ...], ...]
    tolerations: tuple[NodeToleration, ...]
    excluded_nodes: frozenset[str]

    def accepts(self, nodes: Sequence[NodeInfo], labels: NodeLabels | None = None) -> BoolArray:
        """For each node: whether taints, selector and affinity accept it. `excluded_nodes` are not considered;
        `labels`: of these nodes, if another rule has read some."""
        tolerates: dict[tuple[NodeTaint, ...], bool] = {}
        accepted = np.ones(len(nodes), dtype=np.bool_)
        for i, node in enumerate(nodes):
            if node.taints not in tolerates:
                tolerates[node.taints] = all(_tolerated(taint, self.tolerations) for taint in node.taints)
            accepted[i] = tolerates[node.taints]
        if self.node_selector or self.affinity:
            labels = labels or NodeLabels(nodes)
            accepted &= labels.having(self.node_selector)
            if self.affinity:
                accepted &= labels.matching(self.affinity)
        return accepted


def node_rule(role: Role, flavor: FlavorInfo, excluded_nodes: frozenset[str]) -> NodeRule:
    """The rule of a role's pods in a flavor."""
    return NodeRule(role.node_selector, role.affinity, role.tolerations + flavor.tolerations, excluded_nodes)


def _tolerated(taint: NodeTaint, tolerations: tuple[NodeToleration, ...]) -> bool:
    """Kubernetes' rule; a PreferNoSchedule taint does not exclude a node."""
    if taint.effect == "PreferNoSchedule":
        return True
    return any(
        (not t.effect or t.effect == taint.effect)
        and (t.key == taint.key or (not t.key and t.operator == "Exists"))
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


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


_MAX_COMPARED = 200  # values of a label; a host name label has as many as there are nodes
_MAX_SHOWN = 4


def selector_mismatch(selector: Iterable[tuple[str, str]], nodes: Sequence[NodeInfo]) -> str:
    """The end of a message that begins with "no node has": `the label gpu=h20 of its nodeSelector; did you mean
    'h200'?`. "" if a node has all labels of the selector."""
    wanted = list(selector)
    for key, value in wanted:
        values = _first_distinct(node.labels[key] for node in nodes if key in node.labels)
        if not values:
            candidates = _first_distinct(name for node in nodes[:_MAX_COMPARED] for name in node.labels)
            closest = closest_match(key, candidates)
            return f"the label {key} of its nodeSelector" + (f"; did you mean {closest!r}?" if closest else "")
        if not any(node.labels.get(key) == value for node in nodes):
            closest = closest_match(value, values)
            shown = ", ".join(sorted(values)[:_MAX_SHOWN]) + (", ..." if len(values) > _MAX_SHOWN else "")
            hint = f"did you mean {closest!r}?" if closest else f"nodes have {shown}"
            return f"the label {key}={value} of its nodeSelector; {hint}"
    if all(any(node.labels.get(key) != value for key, value in wanted) for node in nodes):
        shown = ", ".join(f"{key}={value}" for key, value in wanted[:_MAX_SHOWN])
        return f"all labels of its nodeSelector: {shown}" + (", ..." if len(wanted) > _MAX_SHOWN else "")
    return ""


def _first_distinct(names: Iterable[str]) -> list[str]:
    """The first _MAX_COMPARED distinct names."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) == _MAX_COMPARED:
            break
    return list(found)
