"""Which guarantees a gang may count on.

It is within the guarantee of a queue on its path when what is charged there and its own request stay below it. But a
gang is not within a guarantee that another one waits for which comes first in the same leaf and would fit it once
others of the leaf have ended: else small gangs, each within what is left of the guarantee, would pass a large one for
ever, or reclaim room for themselves while it waits. A gang ahead that must borrow in any case hides nobody.

Who is leaving already no longer counts: what they held is what others may count on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from muster.scheduling.ledger import Ledger
from muster.scheduling.shape import Request

Within: TypeAlias = tuple[int, ...]
"""One number an option: bit `i` is set when a gang is within the guarantee of the `i`-th queue of its path."""


@dataclass(slots=True)
class Entitlement:
    """The guarantees that gangs are within, as charges stand while a plan goes down the line."""

    ledger: Ledger
    _ahead: dict[int, list[dict[int, int]]] = field(default_factory=dict)  # by leaf and place on its path, by cell
    _behind: dict[int, list[Request]] = field(default_factory=dict)  # by leaf; not yet added up in `_ahead`
    _turns: dict[int, int] = field(default_factory=dict)  # by leaf: how often it was added up
    _known: dict[Request, tuple[int, int, Within]] = field(default_factory=dict)

    def of(self, request: Request) -> Within:
        """The guarantees that the next gang of a leaf is within."""
        if self._behind.get(request.queue):
            self._add_up(request.queue)
        version, turn = self.ledger.version, self._turns.get(request.queue, 0)
        known = self._known.get(request)
        if known is None or known[0] != version or known[1] != turn:
            known = self._known[request] = version, turn, self._find(request)
        return known[2]

    def waits(self, request: Request) -> None:
        """The next gang of its leaf has to wait: it is ahead of the others."""
        self._behind.setdefault(request.queue, []).append(request)

    def _add_up(self, leaf: int) -> None:
        path = self.ledger.staying.tree.path[leaf]
        ahead = self._ahead.setdefault(leaf, [{} for _ in path])
        more = False
        for request in self._behind.pop(leaf):
            if not any(request.could):
                continue  # it has to borrow from everybody: nobody's guarantee is for it
            more = True
            for place, taken in enumerate(ahead):
                for could, least in zip(request.could, request.least, strict=True):
                    if could >> place & 1:
                        for cell, amount in least:
                            taken[cell] = taken.get(cell, 0) + amount
                        break
        if more:
            self._turns[leaf] = self._turns.get(leaf, 0) + 1

    def _find(self, request: Request) -> Within:
        staying = self.ledger.staying
        tree, below, width = staying.tree, staying.below, staying.width
        ahead = self._ahead.get(request.queue)
        found = []
        for could, least in zip(request.could, request.least, strict=True):
            within = 0
            for place, queue in enumerate(tree.path[request.queue] if could else ()):
                guaranteed, taken = tree.guaranteed[queue], None if ahead is None else ahead[place]
                for cell, amount in least:
                    if taken:
                        amount += taken.get(cell, 0)
                    if below[queue * width + cell] + amount > guaranteed[cell]:
                        break
                else:
                    within |= 1 << place
            found.append(within)
        return tuple(found)
