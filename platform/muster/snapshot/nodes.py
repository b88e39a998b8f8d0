"""The flavor of a node, and its position in the flavor's topology.

A node that matches two flavors belongs to neither: counting it twice would oversubscribe it, and choosing one would be
arbitrary. A condition of the flavors reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster import model, spec
from muster.cluster import NodeView
from muster.snapshot.requests import tolerations


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
