"""Cache of nodes, with the usage of unmanaged pods on each.

A view is rebuilt only when a relevant field changed; kubelet heartbeats are frequent and change none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from muster.cluster import NodeView
from muster.kube.convert import node_view
from muster.kube.objects import V1Node
from muster.model import Resources
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache


@dataclass(slots=True)
class _Entry:
    node: V1Node
    view: NodeView


class NodeCache(WatchedCache[_Entry]):
    """Event handler and cache of nodes. `changed` is called when the engine would see a difference."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._cache = MutationCache[_Entry](self._on_change)
        self._unmanaged: dict[str, dict[str, int]] = {}  # by node and resource
        self._views: dict[str, NodeView] = {}
        self._stale: set[str] = set()  # views to rebuild
        self._view_tuple: tuple[NodeView, ...] = ()

    # ---- events of watches

    def on_upsert(self, item: V1Node) -> None:
        known = self._cache.get(item.metadata.name)
        view = known.view if known is not None and _is_same(known.node, item) else node_view(item)
        self._cache.upsert(item.metadata.name, item.metadata.version, _Entry(item, view))

    def uid(self, name: str) -> str:
        """The uid of a node; empty if it is unknown."""
        known = self._cache.get(name)
        return "" if known is None else known.node.metadata.uid

    def view(self, name: str) -> NodeView | None:
        """A node without unmanaged usage; None if it is unknown."""
        known = self._cache.get(name)
        return None if known is None else known.view

    def add_unmanaged_usage(self, node: str, amount: Resources) -> None:
        """Add to the unmanaged usage of a node (negative: subtract). The node may not be known yet."""
        total = self._unmanaged.setdefault(node, {})
        for name, one in amount:
            total[name] = total.get(name, 0) + one
            if not total[name]:
                del total[name]
        if not total:
            del self._unmanaged[node]
        self._stale.add(node)
        self._changed()

    # ---- what the engine sees

    def views(self) -> tuple[NodeView, ...]:
        """All nodes, ordered by name; the same tuple until something changes."""
        if self._stale:
            before = len(self._views)
            for name in self._stale:
                known = self._cache.get(name)
                if known is None:
                    self._views.pop(name, None)
                    continue
                view = known.view
                if (unmanaged := self._unmanaged.get(name)) is not None:
                    view = replace(view, unmanaged_usage=_of_node(unmanaged, view).capped())
                if self._views.get(name) != view:
                    self._views[name] = view
            fresh = self._stale & self._views.keys()
            if len(self._views) != before or fresh:
                self._views = dict(sorted(self._views.items()))
            self._stale.clear()
            self._view_tuple = tuple(self._views.values())
        return self._view_tuple

    def _on_change(self, name: str, old: _Entry | None, new: _Entry | None) -> None:
        if old is None or new is None or old.view is not new.view:
            self._stale.add(name)
            self._changed()


def _of_node(usage: Mapping[str, int], view: NodeView) -> Resources:
    """Of what pods use, the resources that the node has: a pod may name thousands of others."""
    names = {name for name, _ in (*view.allocatable, *view.unhealthy_devices)}
    return Resources.of({name: usage[name] for name in names if name in usage})


def _is_same(a: V1Node, b: V1Node) -> bool:
    """Whether two versions of a node differ in heartbeats only."""
    return (
        a.metadata.labels == b.metadata.labels
        and a.spec == b.spec
        and a.status.allocatable == b.status.allocatable
        and a.status.capacity == b.status.capacity
        and _ready_condition(a) == _ready_condition(b)
    )


def _ready_condition(node: V1Node) -> Mapping[str, object]:
    return {c.type: (c.status, c.last_transition_time) for c in node.status.conditions if c.type == "Ready"}
