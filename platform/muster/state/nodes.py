"""The planner's view of nodes and flavors: the flavor of a node, and its position in the flavor's topology.

A node that matches two flavors belongs to neither: counting it twice would oversubscribe it, and choosing one would be
arbitrary. A condition of the flavors reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster import model
from muster.api import spec
from muster.cluster import NodeView
from muster.state.identity import reuse_equal, reuse_tuple, same_objects
from muster.workload.requests import tolerations


@dataclass(slots=True)
class NodeProjection:
    """Nodes and flavors of the last snapshot. `flavor_of` is by node; `overlaps`, by flavor, a sentence with the nodes
    it loses because another flavor matches them too."""

    nodes: tuple[model.NodeInfo, ...] = ()
    flavors: tuple[model.FlavorInfo, ...] = ()
    overlaps: Mapping[str, str] = field(default_factory=dict)
    flavor_of: Mapping[str, str] = field(default_factory=dict)
    _views: tuple[NodeView, ...] | None = None
    _flavor_key: tuple[object, ...] = ()
    _by_name: dict[str, tuple[NodeView, model.NodeInfo]] = field(default_factory=dict)

    def update(self, views: tuple[NodeView, ...], flavors: Sequence[spec.Flavor]) -> None:
        """Convert what changed."""
        key = tuple(item for flavor in flavors for item in (flavor.spec, flavor.metadata.name))
        same_flavors = same_objects(key, self._flavor_key)
        if same_flavors and views is self._views:
            return
        if not same_flavors:
            self.flavors = reuse_tuple([to_flavor(flavor) for flavor in flavors], self.flavors)
            self._flavor_key = key
        fresh: dict[str, tuple[NodeView, model.NodeInfo]] = {}
        for view in views:
            known = self._by_name.get(view.name)
            if known is None or known[0] is not view or not same_flavors:
                node = to_node(view, flavors)
                known = (view, node if known is None else reuse_equal(known[1], node))
            fresh[view.name] = known
        self._by_name, self._views = fresh, views
        self.nodes = reuse_tuple([node for _, node in fresh.values()], self.nodes)
        self.overlaps = flavor_overlaps(views, flavors)
        self.flavor_of = reuse_equal(self.flavor_of, {node.name: node.flavor or "" for node in self.nodes})


def matching_flavors(view: NodeView, flavors: Sequence[spec.Flavor]) -> tuple[str, ...]:
    """Names of the flavors whose node labels the node has."""
    return tuple(flavor.metadata.name for flavor in flavors if _matches(view.labels, flavor.spec.node_labels))


def to_node(view: NodeView, flavors: Sequence[spec.Flavor]) -> model.NodeInfo:
    """The node as the planner sees it."""
    names = matching_flavors(view, flavors)
    flavor = next((f for f in flavors if f.metadata.name == names[0]), None) if len(names) == 1 else None
    return model.NodeInfo(
        name=view.name,
        allocatable=view.allocatable,
        unmanaged_usage=view.unmanaged_usage,
        flavor=None if flavor is None else flavor.metadata.name,
        domains=() if flavor is None else domains(view.labels, flavor.spec.topology),
        labels=view.labels,
        taints=view.taints,
        schedulable=view.schedulable,
    )


def domains(labels: Mapping[str, str], levels: Sequence[spec.TopologyLevel]) -> tuple[str, ...]:
    """One name per level, widest first, each the path to it; empty from the first level on whose label is missing."""
    path, names, broken = "", [], False
    for level in levels:
        value = labels.get(level.node_label, "")
        broken = broken or not value
        path = f"{path}/{value}" if path else value
        names.append("" if broken else path)
    return tuple(names)


def to_flavor(flavor: spec.Flavor) -> model.FlavorInfo:
    """The flavor as the planner sees it."""
    return model.FlavorInfo(
        name=flavor.metadata.name,
        levels=tuple(level.name for level in flavor.spec.topology),
        tolerations=tolerations(flavor.spec.tolerations),
    )


def flavor_overlaps(views: Sequence[NodeView], flavors: Sequence[spec.Flavor]) -> dict[str, str]:
    """By flavor, a sentence with the nodes it loses because another flavor matches them too."""
    found: dict[str, dict[str, list[str]]] = {}
    for view in views:
        names = matching_flavors(view, flavors)
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            found.setdefault(name, {}).setdefault(others, []).append(view.name)
    return {
        name: "; ".join(_overlap_message(others, nodes) for others, nodes in by.items()) for name, by in found.items()
    }


def _overlap_message(others: str, nodes: list[str]) -> str:
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} also of {others} and are counted in neither: {shown}"


def _matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
