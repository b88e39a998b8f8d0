"""The planner's view of nodes, flavors and queues. What did not change stays the same object.

The planner finds differences by identity, so a result equal to the last one is returned as the same object.

A node that matches two flavors belongs to neither: counting it twice would oversubscribe it, and choosing one would be
arbitrary. A condition of the flavors reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from muster import model
from muster.api import spec
from muster.api.validation import QueueReadiness, namespace_allowed, queue_max_grace_period_s, queue_readiness
from muster.api.validation.queues import quotas_of
from muster.cluster import NO_DECODE_ERRORS, DecodeErrors, NodeView
from muster.workload.conditions import is_admitted, is_finished
from muster.workload.requests import tolerations

T = TypeVar("T")


def reuse_equal(old: T | None, new: T) -> T:
    """The old object if it equals the new one."""
    return old if old is not None and old == new else new


def reuse_tuple(new: Iterable[T], old: tuple[T, ...]) -> tuple[T, ...]:
    """A tuple of the new items; the old tuple if it has the same objects."""
    items = tuple(new)
    return old if same_objects(items, old) else items


def same_objects(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


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
        unhealthy_devices=view.unhealthy_devices,
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


@dataclass(slots=True)
class QueueProjection:
    """The queues of the last snapshot. `readiness` is by queue."""

    queues: tuple[model.QueueInfo, ...] = ()
    readiness: Mapping[str, QueueReadiness] = field(default_factory=dict)
    _key: tuple[object, ...] = ()
    _decode_errors: DecodeErrors = NO_DECODE_ERRORS
    _flavors: frozenset[str] = frozenset()

    def update(
        self, queues: tuple[spec.Queue, ...], flavors: Iterable[spec.Flavor], decode_errors: DecodeErrors
    ) -> bool:
        """Convert the queues if any or the names of the flavors changed; returns whether one did."""
        key = tuple(
            item for queue in queues for item in (queue.spec, queue.metadata.name, queue.metadata.deletion_timestamp)
        )
        names = decode_errors.flavor_names(flavors)
        if same_objects(key, self._key) and decode_errors == self._decode_errors and names == self._flavors:
            return False
        self._key, self._decode_errors, self._flavors = key, decode_errors, names
        self.readiness = queue_readiness(queues, decode_errors.queues, names)
        before = {queue.name: queue for queue in self.queues}
        fresh = [to_queue(queue, self.readiness[queue.metadata.name]) for queue in queues]
        self.queues = reuse_tuple([reuse_equal(before.get(queue.name), queue) for queue in fresh], self.queues)
        return True


def to_queue(queue: spec.Queue, readiness: QueueReadiness) -> model.QueueInfo:
    """One queue; an inactive one stays in the tree, since its running jobs are still charged."""
    return model.QueueInfo(
        name=queue.metadata.name,
        parent=queue.spec.parent,
        weight=queue.spec.weight,
        max_priority=queue.spec.max_priority,
        quotas=quotas_of(queue),
        active=readiness.active,
        inactive_reason="" if readiness.active else readiness.message,
        reservation_delay_s=queue.spec.borrowing_reservation_delay_seconds,
        min_runtime_s=queue.spec.min_runtime_seconds,
    )


class MaxGracePeriods(dict[str, float]):
    """The longest grace period in seconds that a queue allows, by queue; the default of one that does not exist."""

    def __init__(self, queues: Iterable[spec.Queue]) -> None:
        by_name = {queue.metadata.name: queue for queue in queues}
        super().__init__((name, queue_max_grace_period_s(name, by_name)) for name in by_name)

    def __missing__(self, queue: str) -> float:
        return queue_max_grace_period_s(queue, {})


class AllowedNamespaces(dict[tuple[str, str], bool]):
    """Whether a queue admits jobs of a namespace, by (queue, namespace), computed at the first use."""

    def __init__(self, queues: tuple[spec.Queue, ...], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self._queues = queues
        self._namespaces = namespaces

    def __missing__(self, key: tuple[str, str]) -> bool:
        queue, name = key
        labels = {"kubernetes.io/metadata.name": name, **self._namespaces.get(name, {})}
        self[key] = namespace_allowed(queue, self._queues, labels)
        return self[key]


def queues_in_use(
    jobs: Iterable[tuple[str, str, spec.QueueingStatus]], allowed: Mapping[tuple[str, str], bool]
) -> set[str]:
    """Queues that jobs, given as (queue, namespace, status), keep from being removed after the queue's deletion: jobs
    that have not ended, and have capacity of the queue or are in a namespace that it selects (`allowed`). Any user may
    create a job that names any queue."""
    return {
        queue
        for queue, namespace, status in jobs
        if not is_finished(status)
        and (is_admitted(status) or status.nomination is not None or allowed[queue, namespace])
    }
