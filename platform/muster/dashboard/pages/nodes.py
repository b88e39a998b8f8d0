"""Nodes by topology domain, with their state and what jobs use of them; and the page of one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api.quantity import parse_quantity
from muster.dashboard.page import Page, PageRequest
from muster.visibility.list_types import NodeSummaryList
from muster.visibility.types import NodeSummary

_MAX_NODES = 500
_STEPS = 4  # of the colour of a node, from idle to full


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """A resource of a node, in the units of `muster.model`. `step`: 0 for idle, to `_STEPS` for full."""

    resource: str
    used: int
    allocatable: int

    @property
    def step(self) -> int:
        """Any use is at least 1, and only a full node has `_STEPS`."""
        if not self.used:
            return 0
        return min(_STEPS, max(1, self.used * _STEPS // self.allocatable)) if self.allocatable else _STEPS


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A node in the grid. `use`: of its GPUs or other devices, else of its cpu; None if it has none of them."""

    name: str
    state: str
    use: ResourceUse | None
    pods: int


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes of one topology domain, such as a rack: the levels and names from the largest domain to it."""

    flavor: str | None
    domain: tuple[tuple[str, str], ...]
    cells: tuple[NodeCell, ...]


def node_state(node: NodeSummary) -> str:
    """In one word."""
    if not node.ready:
        return "NotReady"
    if node.draining or node.cordoned:
        return "Draining" if node.draining else "Cordoned"
    return "Ready" if node.flavor else "NoFlavor"


def resource_uses(node: NodeSummary) -> list[ResourceUse]:
    """The resources of a node: GPUs, other devices, cpu, the others."""
    names = sorted(node.allocatable, key=_by_kind)
    return [
        ResourceUse(name, parse_quantity(node.used.get(name, 0), name), parse_quantity(node.allocatable[name], name))
        for name in names
    ]


def _by_kind(resource: str) -> tuple[int, str]:
    """Sorts GPUs and other devices, whose names have a domain, before cpu and the others, such as huge pages."""
    kind = 0 if resource.endswith("/gpu") else 1 if "/" in resource else 2 if resource == "cpu" else 3
    return kind, resource


def node_groups(nodes: Sequence[NodeSummary]) -> list[NodeGroup]:
    """The nodes by flavor and domain. A level at which each node has a domain of its own, such as the host, is left
    out."""
    shared = _shared_levels(nodes)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[NodeCell]] = {}
    for node in nodes:
        domain = tuple((level, name) for level, name in node.topology.items() if (node.flavor, level) in shared)
        use = next((one for one in resource_uses(node) if one.resource == "cpu" or "/" in one.resource), None)
        cell = NodeCell(node.metadata.name, node_state(node), use, node.pod_count)
        groups.setdefault((node.flavor or "", domain), []).append(cell)
    return [NodeGroup(flavor or None, domain, tuple(cells)) for (flavor, domain), cells in sorted(groups.items())]


def _shared_levels(nodes: Sequence[NodeSummary]) -> set[tuple[str | None, str]]:
    """(flavor, level) of the levels of which any domain has several nodes."""
    sizes = Counter((node.flavor, level, name) for node in nodes for level, name in node.topology.items())
    return {(flavor, level) for (flavor, level, _), size in sizes.items() if size > 1}


def _data(request: PageRequest) -> Mapping[str, Any]:
    found = request.reader.page(NodeSummaryList, limit=_MAX_NODES, after=request.get("after"))
    return {
        "groups": node_groups(found.items),
        "counts": Counter(map(node_state, found.items)),
        "next": found.metadata.continue_token,
        "remaining": found.metadata.remaining_item_count,
        "first": not request.get("after"),
    }


def _one_node(request: PageRequest) -> Mapping[str, Any]:
    node = request.reader.node(request.get("node"))
    return {"node": node, "state": node_state(node), "uses": resource_uses(node)}


PAGE = Page("/nodes", "Nodes", "nodes.html", _data, parameters=("after",))
NODE_PAGE = Page("/nodes/{node}", "Node", "node.html", _one_node, in_navigation=False)
