"""What the nodes lack for one role of a gang, in words: how many of its pods fit, and what keeps the others out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from muster.model import Role
from muster.scheduling.nodes import BoolArray, FlavorNodes
from muster.scheduling.room import PodKind, Room
from muster.scheduling.selectors import unmatched
from muster.scheduling.units import amount_of, headline, noun_of, number_of, pods_of

Barren: TypeAlias = dict[tuple[PodKind, int], tuple[bool, str]]
"""Why not one pod of a kind fits into the domains of a tier, and whether that is for lack of room: the same for gangs
of every size, and it takes a look at all nodes."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """One role that is to have `size` pods, all inside one domain of tier `tier`, and the room there is.

    `empty`: the room is what the nodes have when nobody is on them and all are up. `barren` belongs to the room as it
    is, and is shared by all who ask about it.
    """

    room: Room
    role: Role
    pod: PodKind
    tier: int
    size: int
    empty: bool = False
    barren: Barren = field(default_factory=dict)

    def told(self) -> str:
        """The best domain and what it lacks, nodes that are down included; "" when the pods fit there."""
        span = self._span
        counts = np.where(span.tiers[self.tier].named, self.room.counts(self.pod)[self.tier], 0)
        best = int(np.argmax(counts)) if len(counts) else 0
        count = int(counts[best]) if len(counts) else 0
        if count >= self.size:
            return ""
        if not count:
            return self.not_one()
        edges = span.start + span.tiers[self.tier].first_node
        return self._some(count, best) + self._scarce(slice(int(edges[best]), int(edges[best + 1]))) + self._down()

    def not_one(self) -> str:
        """Why not even one pod fits."""
        key = (self.pod, self.tier)
        if key not in self.barren:
            self.barren[key] = self._why_not_one()
        for_room, text = self.barren[key]
        return f"room for none of its {pods_of(self.size)}: {text}" if for_room and self.size > 1 else text

    def _why_not_one(self) -> tuple[bool, str]:
        span, up = self._span, self.room.usable(self.pod)
        accepted = self.room.masks.accepted(self.pod)
        if span.start == span.stop:
            return False, f"there is no node of {self.pod.flavor}"
        if not accepted.any():
            nodes = self.room.table.nodes[span.start : span.stop]
            lacks = unmatched(self.role.node_selector, nodes)
            told = f"has {lacks}" if lacks else "accepts its pods: see taints, node selector and affinity"
            return False, f"no node of {self.pod.flavor} {told}"
        if not up.any():
            total = int(accepted.sum())
            return False, f"{'the only node is' if total == 1 else f'all {total} nodes are'} down, cordoned or blamed"
        inside = up & span.tiers[self.tier].named[span.tiers[self.tier].of_node]
        if not inside.any():
            return False, f"no node that is up has the label of the level {span.tiers[self.tier].name}"
        return not self.empty, self._on_one_node(inside) + self._down()

    @property
    def _span(self) -> FlavorNodes:
        return self.room.table.flavors[self.pod.flavor]

    def _some(self, count: int, domain: int) -> str:
        """`room for 1 of its 2 pods, 8 of 16 GPUs`, or `8 GPUs free in rack r2, 16 required in one rack`."""
        head, tier = headline(name for name, _ in self.role.request), self._span.tiers[self.tier]
        each = self.role.request.get(head)
        free, wanted = count * each, self.size * each
        where = f" in {tier.name} {tier.domains[domain]}" if self.tier else ""
        together = f" required in one {tier.name}" if self.tier else ""
        if head == "pods":
            return f"room for {count} of its {pods_of(self.size)}{where}{together and f', all{together}'}"
        if self.tier:
            return f"{amount_of(head, free)} free{where}, {number_of(head, wanted)}{together}"
        return f"room for {count} of its {pods_of(self.size)}, {number_of(head, free)} of {amount_of(head, wanted)}"

    def _scarce(self, rows: slice) -> str:
        """`; memory for 1 of 2 pods only`, if there would be enough of the resource a person thinks of first."""
        names = [name for name, _ in self.role.request]
        alone = self.room.by_resource(self.pod, rows, names)
        if alone.get(headline(names), 0) < self.size:
            return ""
        short = [f"{noun_of(name)} for {count} of {pods_of(self.size)}" for name, count in alone.items()
                 if count < self.size]  # fmt: skip
        return f"; {' and '.join(short)} only" if short else "; the rest is not free on the same nodes"

    def _on_one_node(self, inside: BoolArray) -> str:
        """`no node has 8 GPUs free (at most 4)`."""
        table, free = self.room.table, self.room.free[self._span.start : self._span.stop][inside]
        word = "" if self.empty else " free"
        most = {
            name: max(0, int(free[:, table.columns[name]].max())) if name in table.columns else 0
            for name, _ in self.role.request
        }
        short = [(name, amount) for name, amount in self.role.request if most[name] < amount]
        if not short:
            names = [amount_of(name, amount) for name, amount in self.role.request if name != "pods"]
            return f"no node has {' and '.join(names)}{word} at once"
        head = headline(name for name, _ in short)
        short.sort(key=lambda item: (item[0] != head, item[0]))
        told = [f"{amount_of(name, amount)} (at most {number_of(name, most[name])})" for name, amount in short]
        if len(told) > 1:
            return f"no node has {' or '.join(told)}{word}"
        amount, limit = amount_of(*short[0]), number_of(head, most[head])
        one_of_none = number_of(*short[0]) == "1" and limit == "0"
        return f"no node has {amount}{word}" + ("" if one_of_none else f" (at most {limit})")

    def _down(self) -> str:
        """`; 1 of 2 nodes is down, cordoned or blamed`."""
        accepted = self.room.masks.accepted(self.pod)
        down = int((accepted & ~self.room.usable(self.pod)).sum())
        be = "is" if down == 1 else "are"
        return f"; {down} of {int(accepted.sum())} nodes {be} down, cordoned or blamed" if down else ""
