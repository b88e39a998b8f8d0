"""Queues and nodes as rows for display, the same for every cluster: pure, from objects and the newest snapshot.

Quota is counted by `muster.quota`, as the planner counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict

from muster import model
from muster.api import spec
from muster.api.quantity import format_quantity
from muster.api.validation import QueueReadiness, queue_readiness
from muster.api.validation.queues import path_to_root, quota_tree
from muster.cluster import VIRTUAL_NODE_LABEL, NodeView
from muster.quota import QuotaUsage

_FlavorResource = tuple[str, str]  # flavor, resource
_RESOURCE_COLUMNS = ("guaranteed", "limit", "lend", "used", "borrowed", "available")


class QueueQuotaRow(TypedDict):
    """One flavor of one queue, shaped like `spec.resources`: quantities by resource name.

    `used` is the charged usage of the queue and its descendants; `borrowed` is the part above the guarantee;
    `available` is what the queue can still admit (negative if over-admitted). `limit` omits unlimited resources.
    """

    flavor: str
    guaranteed: dict[str, str]
    limit: dict[str, str]
    lend: dict[str, str]
    used: dict[str, str]
    borrowed: dict[str, str]
    available: dict[str, str]


class QueueTableRow(TypedDict):
    """One queue; rows come parents first, children by name."""

    name: str
    parent: str | None
    active: bool
    reason: str  # of the condition Active
    message: str
    overcommitted: str | None
    weight: float
    share: float  # of the decayed usage; 0 when nothing was used
    waiting: int  # jobs in this queue and below
    admitted: int
    resources: list[QueueQuotaRow]


class NodeTableRow(TypedDict):
    """One node; quantities by resource name."""

    name: str
    flavor: str | None  # None: no flavor matches, or more than one
    virtual: bool
    ready: bool
    cordoned: bool  # takes no new pods
    draining: bool  # its pods are evicted, too
    labels: dict[str, str]
    allocatable: dict[str, str]
    used: dict[str, str]
    pods: list[str]


def queue_rows(
    queues: Sequence[spec.Queue],
    snapshot: model.Snapshot | None,
    waiting: Mapping[str, int],
    unreadable: Mapping[str, str] = MappingProxyType({}),
    flavors: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of `QueueTableRow`. `snapshot` is that of the last plan, `waiting` counts pending jobs by queue,
    `unreadable` has the error of each queue that cannot be decoded completely, `flavors` the names of
    those that exist; None: not known."""
    readiness = queue_readiness(queues, unreadable, flavors)
    tree = _QueueTable(list(queues), snapshot, waiting, readiness)
    return [tree.row(name, depth) for name, depth in tree.depth_first()]


def waiting_by_queue(jobs: Iterable[tuple[str, spec.QueueingStatus]]) -> dict[str, int]:
    """The number of pending jobs, given as (queue, status), of each queue that has any."""
    waiting: dict[str, int] = {}
    for queue, status in jobs:
        if status.phase == "Pending":
            waiting[queue] = waiting.get(queue, 0) + 1
    return waiting


class _QueueTable:
    def __init__(
        self,
        queues: list[spec.Queue],
        snapshot: model.Snapshot | None,
        waiting: Mapping[str, int],
        readiness: dict[str, QueueReadiness],
    ) -> None:
        self.by_name = {queue.metadata.name: queue for queue in queues}
        self.tree = quota_tree(queues)
        self.charges = QuotaUsage(self.tree)
        self.readiness = readiness
        self.paths = {name: [one.metadata.name for one in path_to_root(name, self.by_name)] for name in self.by_name}
        self.subtree_usage: dict[str, dict[_FlavorResource, int]] = {name: {} for name in self.by_name}
        self.decayed_usage: dict[str, dict[_FlavorResource, float]] = {name: {} for name in self.by_name}
        self.waiting = dict.fromkeys(self.by_name, 0)
        self.admitted = dict.fromkeys(self.by_name, 0)
        for name, count in waiting.items():
            for above in self.paths.get(name, ()):
                self.waiting[above] += count
        if snapshot is not None:
            self._charge(snapshot)

    def _charge(self, snapshot: model.Snapshot) -> None:
        gangs = {gang.uid: gang for gang in snapshot.pending} | {one.gang.uid: one.gang for one in snapshot.running}
        charged = [(one.gang, one.placement) for one in snapshot.running]
        for nomination in snapshot.nominations:
            gang_of = gangs.get(nomination.gang_uid, nomination.nominated_gang)  # a gang in backoff is not pending
            if gang_of is not None:
                charged.append((gang_of, nomination.placement))
        for gang, placement in charged:
            requests = {role.name: role.request for role in gang.roles}
            for part in placement:
                for resource, amount in requests.get(part.role, ()):
                    self._charge_path(gang.queue, (part.flavor, resource), amount * part.replicas)
        for one in snapshot.running:
            for above in self.paths.get(one.gang.queue, ()):
                self.admitted[above] += one.state != "terminating"
        for usage in snapshot.usage:
            for above in self.paths.get(usage.queue, ()):
                cells = self.decayed_usage[above]
                cell = usage.flavor, usage.resource
                cells[cell] = cells.get(cell, 0.0) + usage.resource_seconds

    def _charge_path(self, queue: str, cell: _FlavorResource, amount: int) -> None:
        if (number := self.tree.index.get(queue)) is not None:
            self.charges.add(number, self.tree.cell_amounts(number, cell[0], [(cell[1], amount)]))
        for above in self.paths.get(queue, ()):
            self.subtree_usage[above][cell] = self.subtree_usage[above].get(cell, 0) + amount

    def depth_first(self) -> list[tuple[str, int]]:
        order: list[tuple[str, int]] = []

        def visit(name: str, depth: int) -> None:
            order.append((name, depth))
            for child in sorted(self.tree.queues[below].name for below in self.tree.children[self.tree.index[name]]):
                visit(child, depth + 1)

        in_cycle = {name for name, queue_state in self.readiness.items() if queue_state.reason == "Cycle"}
        for name, queue in sorted(self.by_name.items()):
            if name in in_cycle:
                order.append((name, 0))
            elif queue.spec.parent not in self.by_name or queue.spec.parent in in_cycle:
                visit(name, 0)
        return order

    def row(self, name: str, depth: int) -> dict[str, Any]:
        queue, queue_state = self.by_name[name], self.readiness[name]
        countable = all(self.readiness[above].reason != "Cycle" for above in self.paths[name])
        return {
            "name": name,
            "parent": queue.spec.parent,
            "depth": depth,
            "active": queue_state.active,
            "reason": queue_state.reason,
            "message": queue_state.message,
            "overcommitted": queue_state.overcommitted_message,
            "weight": queue.spec.weight,
            "share": self.share(name) if countable else 0.0,
            "waiting": self.waiting[name],
            "admitted": self.admitted[name],
            "resources": self.resources(name) if countable else [],
        }

    def resources(self, name: str) -> list[dict[str, Any]]:
        """One entry per flavor; a resource without a quota on the path to the root is only in `used`."""
        named = self.flavor_resources_with_quota(name)
        cells = sorted(named | {cell for cell, used in self.subtree_usage[name].items() if used and cell[1] != "pods"})
        rows: dict[str, dict[str, Any]] = {}
        for cell in cells:
            flavor, resource = cell
            row = rows.setdefault(flavor, {"flavor": flavor} | {word: {} for word in _RESOURCE_COLUMNS})
            used = self.subtree_usage[name].get(cell, 0)
            row["used"][resource] = format_quantity(used, resource)
            if cell not in named:
                continue
            number, column = self.tree.index[name], self.tree.cell_index[cell]
            guaranteed = self.tree.guaranteed[number][column]
            row["guaranteed"][resource] = format_quantity(guaranteed, resource)
            row["borrowed"][resource] = format_quantity(max(0, used - guaranteed), resource)
            row["available"][resource] = format_quantity(self.charges.available(number, column), resource)
            for quota in self.tree.queues[number].quotas:
                if (quota.flavor, quota.resource) == cell:
                    for word, amount in (("limit", quota.limit), ("lend", quota.lend)):
                        if amount is not None:
                            row[word][resource] = format_quantity(amount, resource)
        return list(rows.values())

    def flavor_resources_with_quota(self, name: str) -> set[_FlavorResource]:
        """Flavor resources with a quota in the queue, an ancestor or a descendant."""
        related = {*self.paths[name], *(other for other, path in self.paths.items() if name in path)}
        return {
            (entry.flavor, resource)
            for other in related
            for entry in self.by_name[other].spec.resources
            for resource in (*entry.guaranteed, *entry.limit, *entry.lend)
        }

    def share(self, name: str) -> float:
        """Decayed resource-seconds per unit of root quota and queue weight; the largest resource counts."""
        tree, weight = self.tree, self.by_name[name].spec.weight
        root = tree.subtree_quota[tree.root(tree.index[name])]
        totals = {cell: root[tree.cell_index[cell]] for cell in self.decayed_usage[name] if cell in tree.cell_index}
        parts = (self.decayed_usage[name][cell] / (weight * total) for cell, total in totals.items() if total > 0)
        return round(max(parts, default=0.0), 3)


def node_rows(
    nodes: Iterable[NodeView], snapshot: model.Snapshot | None, pods: Mapping[str, Collection[str]]
) -> list[dict[str, Any]]:
    """Rows of `NodeTableRow`. `snapshot` is that of the last plan, `pods` has names of pods by node."""
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
    """The requests of running gangs by node."""
    used: dict[str, model.Resources] = {}
    for one in snapshot.running if snapshot else ():
        requests = {role.name: role.request for role in one.gang.roles}
        for part in one.placement:
            for node, count in part.nodes:
                taken = requests.get(part.role, model.Resources()).times(count)
                used[node] = used.get(node, model.Resources()).plus(taken)
    return used
