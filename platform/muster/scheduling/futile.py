"""Which gangs need no trial now: neither quota nor room would let them start, and nobody has to leave for them.

Most waiting gangs are of that kind in most plans. Looking at each takes its time; told for all requests at once it is
a few array operations. The answer holds as long as the ledger does not change; after a change it is worked out again
only when some gangs in a row were refused, for where one starts the next may start as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from muster.model import Gang
from muster.scheduling.fit import fits
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.nodes import BoolArray
from muster.scheduling.refuse import Refusal, refusal
from muster.scheduling.room import Room
from muster.scheduling.shape import Request, Requests
from muster.scheduling.victims import Victims

PATIENCE = 8
"""So many gangs in a row are looked at one by one before the rest is looked at together."""


@dataclass(slots=True)
class Futile:
    """The answer, worked out when it is worth it."""

    facts: Memo
    ledger: Ledger
    victims: Victims
    _requests: Requests = field(init=False)
    _version: int = -1
    _in_a_row: int = 0
    _last: Gang | None = None  # asked twice in a row, at the same version of the ledger, counts once
    _last_at: int = -1
    _why: list[Refusal | None] = field(
        default_factory=list
    )  # by number of the request, if nobody of its leaf can leave

    def __post_init__(self) -> None:
        self._requests = self.facts.shapes.lined_up()

    def why(self, gang: Gang, request: Request) -> Refusal | None:
        """Why a gang waits, if it needs no trial."""
        if self._version != self.ledger.version:
            if self._in_a_row < PATIENCE:
                if self._last is not gang or self._last_at != self.ledger.version:
                    self._last, self._last_at = gang, self.ledger.version
                    self._in_a_row += 1
                return None
            self._work_out()
        number = self._requests.index.get(request)
        if number is None or (why := self._why[number]) is None:
            return None
        return None if self.victims.lower(request.queue, gang.priority) else why

    def changed(self) -> None:
        """Somebody started, or room is being made for somebody."""
        self._in_a_row = 0

    def _work_out(self) -> None:
        self._version = self.ledger.version
        lined_up = self._requests
        avail = self.ledger.charged.available()
        asks = lined_up.amounts > 0
        over = np.any(asks & (lined_up.amounts > avail[lined_up.queue]), axis=1)
        full = _full(lined_up, self.ledger.now)[lined_up.option]
        domain = _in_domain(lined_up)[lined_up.option]
        which = np.select([~(over | full) | self._may_reclaim(), over, domain], [0, 1, 2], 3)
        reasons = (None, refusal("QuotaExceeded"), refusal("TopologyNoRoom"), refusal("NoRoom"))
        self._why = [reasons[i] for i in which.tolist()]

    def _may_reclaim(self) -> BoolArray:
        """Requests within a guarantee of their path, beside a queue that uses more than its own."""
        lined_up, tree, staying = self._requests, self.facts.tree, self.ledger.staying
        above = self.victims.above_below(frozenset(range(len(tree.cells))), staying, self.ledger.version)
        generous = np.array([queue in above for queue in range(len(tree.queues))] + [False])
        slack = tree.guarantees - staying.table()
        queue, answer = lined_up.queue, np.zeros(len(lined_up.queue), dtype=np.bool_)
        parent = np.array(tree.parent, dtype=np.int64)
        while (inner := parent[queue] >= 0).any():
            within = np.all((lined_up.amounts == 0) | (lined_up.amounts <= slack[queue]), axis=1)
            answer |= within & inner & generous[parent[queue]]
            queue = np.where(inner, parent[queue], queue)
        return answer


def _full(lined_up: Requests, now: Room) -> BoolArray:
    """Options whose minimum finds no room now."""
    table = now.table
    pairs = zip(lined_up.options, lined_up.sizes, strict=True)
    full: BoolArray = np.array([not fits(table, option, sizes, now) for option, sizes in pairs], dtype=np.bool_)
    return full


def _in_domain(lined_up: Requests) -> BoolArray:
    """Options that have to lie in one domain."""
    inside = [any(spot.required is not None for spot in option.spots) for option in lined_up.options]
    return np.array(inside, dtype=np.bool_)
