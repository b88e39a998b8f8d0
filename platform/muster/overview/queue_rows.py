"""The queue tree as rows for people: what each queue has, uses, borrows and may still take (pure).

Quota is counted by `muster.quota`, as the planner counts it. A row's `used` is all usage of the queue and below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from muster import model, spec
from muster.admission import queue_verdicts
from muster.admission.queues import path_to_root
from muster.admission.tree import quota_tree
from muster.quantity import format_quantity
from muster.quota import Charges

Cell = tuple[str, str]
"""(flavor, resource)"""


def queue_rows(
    queues: Iterable[spec.Queue],
    snapshot: model.Snapshot | None,
    waiting: Mapping[str, int],
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Parents first, children by name. `snapshot` is the newest one planned on, `waiting` counts jobs by queue,
    `unreadable` says why some cannot be read whole."""
    tree = _Tree(list(queues), snapshot, waiting, unreadable)
    return [tree.row(name, depth) for name, depth in tree.in_order()]


def waiting_by_queue(jobs: Iterable[spec.TrainingJob]) -> dict[str, int]:
    """How many jobs wait in each queue that has any."""
    waiting: dict[str, int] = {}
    for job in jobs:
        if job.status.phase == "Pending":
            waiting[job.spec.queue] = waiting.get(job.spec.queue, 0) + 1
    return waiting


class _Tree:
    def __init__(
        self,
        queues: list[spec.Queue],
        snapshot: model.Snapshot | None,
        waiting: Mapping[str, int],
        unreadable: Mapping[str, str],
    ) -> None:
        self.by_name = {queue.metadata.name: queue for queue in queues}
        self.tree = quota_tree(queues)
        self.charges = Charges(self.tree)
        self.verdicts = queue_verdicts(queues, unreadable)
        self.paths = {name: [one.metadata.name for one in path_to_root(name, self.by_name)] for name in self.by_name}
        self.below: dict[str, dict[Cell, int]] = {name: {} for name in self.by_name}
        self.decayed: dict[str, dict[Cell, float]] = {name: {} for name in self.by_name}
        self.waiting = dict.fromkeys(self.by_name, 0)
        self.admitted = dict.fromkeys(self.by_name, 0)
        for name, count in waiting.items():
            for above in self.paths.get(name, ()):
                self.waiting[above] += count
        if snapshot is not None:
            self._charge(snapshot)

    def _charge(self, snapshot: model.Snapshot) -> None:
        gangs = {gang.uid: gang for gang in snapshot.waiting} | {one.gang.uid: one.gang for one in snapshot.running}
        charged = [(one.gang, one.placement) for one in snapshot.running]
        for hold in snapshot.holds:
            holder = gangs.get(hold.gang, hold.holder)  # a gang that backs off is known from its hold alone
            if holder is not None:
                charged.append((holder, hold.placement))
        for gang, placement in charged:
            requests = {role.name: role.request for role in gang.roles}
            for part in placement:
                for resource, amount in requests.get(part.role, ()):
                    self._add(gang.queue, (part.flavor, resource), amount * part.replicas)
        for one in snapshot.running:
            for above in self.paths.get(one.gang.queue, ()):
                self.admitted[above] += one.state != "leaving"
        for usage in snapshot.usage:
            for above in self.paths.get(usage.queue, ()):
                cells = self.decayed[above]
                cell = usage.flavor, usage.resource
                cells[cell] = cells.get(cell, 0.0) + usage.resource_seconds

    def _add(self, queue: str, cell: Cell, amount: int) -> None:
        if (number := self.tree.index.get(queue)) is not None:
            self.charges.charge(number, self.tree.amounts(number, cell[0], [(cell[1], amount)]))
        for above in self.paths.get(queue, ()):
            self.below[above][cell] = self.below[above].get(cell, 0) + amount

    def in_order(self) -> list[tuple[str, int]]:
        order: list[tuple[str, int]] = []

        def visit(name: str, depth: int) -> None:
            order.append((name, depth))
            for child in sorted(self.tree.queues[below].name for below in self.tree.children[self.tree.index[name]]):
                visit(child, depth + 1)

        in_cycle = {name for name, verdict in self.verdicts.items() if verdict.reason == "Cycle"}
        for name, queue in sorted(self.by_name.items()):
            if name in in_cycle:
                order.append((name, 0))
            elif queue.spec.parent not in self.by_name or queue.spec.parent in in_cycle:
                visit(name, 0)
        return order

    def row(self, name: str, depth: int) -> dict[str, Any]:
        queue, verdict = self.by_name[name], self.verdicts[name]
        countable = all(self.verdicts[above].reason != "Cycle" for above in self.paths[name])
        return {
            "name": name,
            "parent": queue.spec.parent,
            "depth": depth,
            "active": verdict.active,
            "reason": verdict.reason,
            "message": verdict.message,
            "overcommitted": verdict.overcommitted_message,
            "weight": queue.spec.weight,
            "share": self.share(name) if countable else 0.0,
            "waiting": self.waiting[name],
            "admitted": self.admitted[name],
            "resources": self.resources(name) if countable else [],
        }

    def resources(self, name: str) -> list[dict[str, Any]]:
        """One entry a flavor; a resource that no queue on the path limits is only in `used`."""
        named = self.named(name)
        cells = sorted(named | {cell for cell, used in self.below[name].items() if used and cell[1] != "pods"})
        rows: dict[str, dict[str, Any]] = {}
        for cell in cells:
            flavor, resource = cell
            row = rows.setdefault(flavor, {"flavor": flavor} | {word: {} for word in _AMOUNTS})
            used = self.below[name].get(cell, 0)
            row["used"][resource] = format_quantity(used, resource)
            if cell not in named:
                continue
            number, column = self.tree.index[name], self.tree.cells[cell]
            guaranteed = self.tree.guaranteed[number][column]
            row["guaranteed"][resource] = format_quantity(guaranteed, resource)
            row["borrowed"][resource] = format_quantity(max(0, used - guaranteed), resource)
            row["available"][resource] = format_quantity(self.charges.avail(number, column), resource)
            for quota in self.tree.queues[number].quotas:
                if (quota.flavor, quota.resource) == cell:
                    for word, amount in (("limit", quota.limit), ("lend", quota.lend)):
                        if amount is not None:
                            row[word][resource] = format_quantity(amount, resource)
        return list(rows.values())

    def named(self, name: str) -> set[Cell]:
        """Cells that the queue, one above it or one below it says something about."""
        related = {*self.paths[name], *(other for other, path in self.paths.items() if name in path)}
        return {
            (entry.flavor, resource)
            for other in related
            for entry in self.by_name[other].spec.resources
            for resource in (*entry.guaranteed, *entry.limit, *entry.lend)
        }

    def share(self, name: str) -> float:
        """Decayed resource-seconds per unit of what the root has and of the queue's weight; the largest cell counts."""
        tree, weight = self.tree, self.by_name[name].spec.weight
        root = tree.total[tree.root(tree.index[name])]
        totals = {cell: root[tree.cells[cell]] for cell in self.decayed[name] if cell in tree.cells}
        parts = (self.decayed[name][cell] / (weight * total) for cell, total in totals.items() if total > 0)
        return round(max(parts, default=0.0), 3)


_AMOUNTS = ("guaranteed", "limit", "lend", "used", "borrowed", "available")
