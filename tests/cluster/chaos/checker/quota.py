"""The five formulas of quota, written down a second time: slowly, straight from their definition.

Per (flavor, resource), with G, L, K = guaranteed, limit, lend; absent: G = 0 (of a root: L, if it has one), L and K
without bound:

    own = max(0, G - sum of the children's G)     T = own + sum of the children's lent
    lent = min(K, T), kept = T - lent             G of an inner queue is at least its children's sum
    U(leaf) = charged                             U(inner) = sum over children of max(0, U(child) - kept(child))
    avail(root) = T - U
    avail(q) = min(L - all usage below q, max(0, kept - U) + avail(parent)), and L binds for every queue above too
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.cluster.chaos.checker.objects import Queue

Cell = tuple[str, str]  # flavor, resource
Charges = Mapping[str, Mapping[Cell, int]]  # by queue
INFINITE = 1 << 80


@dataclass(frozen=True, slots=True)
class Tree:
    """All queues at one moment."""

    queues: Mapping[str, Queue]

    def refuses(self, leaf: str, requested: Mapping[Cell, int], charges: Charges) -> str:
        """Why the queue may not use so much more; "" if it may. Cells that no queue on the path names are free."""
        path = self._path(leaf)
        if not path:
            return f"queue {leaf} is missing, in a cycle, or has no parent"
        named = {cell for name in path for cell in self.queues[name].cells}
        flavors = {flavor for flavor, _ in named}
        for cell, amount in sorted(requested.items()):
            if cell[0] not in flavors:
                return f"no queue above {leaf} names flavor {cell[0]}"
            if cell in named and amount > 0:
                left = self.available(leaf, cell, charges)
                if amount > left:
                    return f"requests {amount / 1000:g} {cell[1]} of {cell[0]}, queue {leaf} has {left / 1000:g} left"
        return ""

    def available(self, name: str, cell: Cell, charges: Charges) -> int:
        """avail(q)."""
        parent, limit = self.queues[name].parent, self._limit(name, cell) - self._below(name, cell, charges)
        used = self._used(name, cell, charges)
        if parent is None:
            return min(limit, self._total(name, cell) - used)
        spare = max(0, self._total(name, cell) - self._lent(name, cell) - used)
        return min(self._limits_left(name, cell, charges), spare + self.available(parent, cell, charges))

    def _limits_left(self, name: str, cell: Cell, charges: Charges) -> int:
        return min(self._limit(above, cell) - self._below(above, cell, charges) for above in self._path(name))

    def _path(self, name: str) -> list[str]:
        """From the queue to its root; nothing when it does not get there."""
        path: list[str] = []
        at: str | None = name
        while at is not None:
            if at in path or at not in self.queues:
                return []
            path.append(at)
            at = self.queues[at].parent
        return path

    def _children(self, name: str) -> list[str]:
        return [queue.key for queue in self.queues.values() if queue.parent == name]

    def _guaranteed(self, name: str, cell: Cell) -> int:
        written, limit, _ = self.queues[name].cells.get(cell, (None, None, None))
        if written is None and self.queues[name].parent is None:
            written = limit
        return max(written or 0, sum(self._guaranteed(child, cell) for child in self._children(name)))

    def _limit(self, name: str, cell: Cell) -> int:
        limit = self.queues[name].cells.get(cell, (None, None, None))[1]
        return INFINITE if limit is None else limit

    def _total(self, name: str, cell: Cell) -> int:
        children = self._children(name)
        own = self._guaranteed(name, cell) - sum(self._guaranteed(child, cell) for child in children)
        return max(0, own) + sum(self._lent(child, cell) for child in children)

    def _lent(self, name: str, cell: Cell) -> int:
        lend = self.queues[name].cells.get(cell, (None, None, None))[2]
        total = self._total(name, cell)
        return total if lend is None else min(lend, total)

    def _used(self, name: str, cell: Cell, charges: Charges) -> int:
        """U(q); what is charged to the queue itself counts whether it is a leaf or not."""
        own = charges.get(name, {}).get(cell, 0)
        return own + sum(
            max(0, self._used(child, cell, charges) - (self._total(child, cell) - self._lent(child, cell)))
            for child in self._children(name)
        )

    def _below(self, name: str, cell: Cell, charges: Charges) -> int:
        own = charges.get(name, {}).get(cell, 0)
        return own + sum(self._below(child, cell, charges) for child in self._children(name))
