"""What is said of a request whatever the state of things: what it needs, and why it can never have it.

Nodes and queues alone decide about these words, so they are found once and told again in every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.quota import Charges, QueueTree
from muster.scheduling.fit import fits
from muster.scheduling.nodes import NodeTable
from muster.scheduling.room import Room
from muster.scheduling.shape import Option, Request, Shape, largest_step
from muster.scheduling.shortage import Barren, Shortage
from muster.scheduling.units import amount_of, headline, pods_of


@dataclass(frozen=True, slots=True)
class Wording:
    """Words about requests, each found once."""

    table: NodeTable
    tree: QueueTree
    bare: Room  # with nobody on the nodes, pods that are not ours neither, and all of them up
    empty: Charges  # with nobody charged
    _heads: dict[Shape, str] = field(default_factory=dict)
    _needs: dict[tuple[Option, str], str] = field(default_factory=dict)
    _needs_of: dict[tuple[Request, int, int], str] = field(default_factory=dict)
    _barren: Barren = field(default_factory=dict)

    def head(self, shape: Shape) -> str:
        """The resource a person thinks of first."""
        head = self._heads.get(shape)
        if head is None:
            head = self._heads[shape] = headline(name for role in shape.roles for name, _ in role.request)
        return head

    def needs(self, shape: Shape, option: int, resource: str | None = None) -> str:
        """`needs 16 GPUs of h200`."""
        name = resource or self.head(shape)
        key = (shape.options[option], name)
        needs = self._needs.get(key)
        if needs is None:
            total: dict[str, int] = {}
            for role, size, flavor in zip(shape.roles, shape.least, key[0].flavors, strict=True):
                total[flavor] = total.get(flavor, 0) + size * role.request.get(name)
            parts = [f"{amount_of(name, amount)} of {flavor}" for flavor, amount in total.items() if amount]
            at_least = "at least " if shape.steps else ""
            needs = f"needs {at_least}{' and '.join(parts) or amount_of('pods', sum(shape.least))}"
            self._needs[key] = needs
        return needs

    def needs_of(self, request: Request, option: int, cell: int) -> str:
        """`needs`, of the resource of a cell."""
        key = (request, option, cell)
        needs = self._needs_of.get(key)
        if needs is None:
            needs = self._needs_of[key] = self.needs(request.shape, option, self.tree.cell_names[cell][1])
        return needs

    def too_large(self, shape: Shape) -> str:
        """Names the largest that would fit an empty cluster, or what no node has."""
        blocked = blocked_in(self.bare, shape, 0, self._barren, empty=True)
        if blocked is None:
            return f"{self.needs(shape, 0)}; the empty cluster holds each of its roles, but not all of them"
        span = self.table.flavors[blocked.pod.flavor]
        inside = f" in one {span.tiers[blocked.tier].name}" if blocked.tier else ""
        sizes, role = list(shape.least), shape.roles.index(blocked.role)

        def with_pods(pods: int) -> bool:
            sizes[role] = pods
            return fits(self.table, shape.options[0], tuple(sizes), self.bare)

        found = largest_step(blocked.size - 1, lambda pods: with_pods(pods) or None)
        if found is None or not found[0]:
            return f"{self.needs(shape, 0)}{inside}; {of_role(shape, blocked)}"
        head = headline(name for name, _ in blocked.role.request)
        largest = f"{found[0]} of its {pods_of(blocked.size)}"
        if head != "pods":
            largest += f", {amount_of(head, found[0] * blocked.role.request.get(head))}"
        whose = f"role {blocked.role.name}: " if len(shape.roles) > 1 else ""
        return f"{self.needs(shape, 0)}{inside}; {whose}the largest that fits the empty cluster{inside} is {largest}"

    def too_much(self, request: Request, option: int) -> str:
        """Names the most that the queue could ever use."""
        empty, least = self.empty, request.least[option]
        cell = self.first(request.shape, [c for c, amount in least if amount > empty.avail(request.queue, c)])
        resource = self.tree.cell_names[cell][1]
        most = amount_of(resource, max(0, empty.avail(request.queue, cell)))
        name = self.tree.queues[request.queue].name
        flavor = f" of {self.tree.cell_names[cell][0]}" if len(request.shape.options) > 1 else ""
        needs = self.needs(request.shape, option, resource)
        return f"{needs}; queue {name} can never use more than {most}{flavor}"

    def first(self, shape: Shape, cells: Sequence[int]) -> int:
        """The cell a person asks about first: the gang's headline resource if it is there."""
        names, head = self.tree.cell_names, self.head(shape)
        return min(cells, key=lambda cell: (names[cell][1] != head, cell))


def blocked_in(room: Room, shape: Shape, option: int, barren: Barren, *, empty: bool) -> Shortage | None:
    """The first role that finds no room by itself; `barren` belongs to the room as it is."""
    for spot in shape.options[option].spots:
        tier = spot.required or 0
        named = room.table.flavors[spot.flavor].tiers[tier].named
        for pod, role in zip(spot.pods, spot.roles, strict=True):
            size = shape.least[role]
            if not (named & (room.counts(pod)[tier] >= size)).any():
                return Shortage(room, shape.roles[role], pod, tier, size, empty, barren)
    return None


def of_role(shape: Shape, blocked: Shortage) -> str:
    """What a role lacks, with its name where there are several."""
    return (f"role {blocked.role.name}: " if len(shape.roles) > 1 else "") + blocked.told()
