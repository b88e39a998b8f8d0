"""One sentence for every gang that waits, with the numbers that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from muster.model import Wait
from muster.quota import Charges
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.refuse import Refusal
from muster.scheduling.room import Room
from muster.scheduling.shape import Option, Request, Shape
from muster.scheduling.shortage import Barren
from muster.scheduling.units import number_of
from muster.scheduling.wording import Wording, blocked_in, of_role


@dataclass(frozen=True, slots=True)
class Explainer:
    """Sentences about the state of things at the end of a plan. What several of them share is worded once."""

    wording: Wording
    charged: Charges
    now: Room
    _left: dict[tuple[int, int], str] = field(default_factory=dict)
    _rooms: dict[Option, tuple[str, str]] = field(default_factory=dict)
    _barren: Barren = field(default_factory=dict)

    def quota(self, request: Request, option: int, flavor: str | None = None) -> str:
        """`needs 16 GPUs of h200; queue research has 8 of 24 left and may borrow 4`, of the scarcest resource.

        Where none is short it is about `flavor`, if that is given.
        """
        least = request.least[option]
        if len(least) == 1:  # asked for nearly every gang that waits
            cell = least[0][0]
            left = self._left.get((request.queue, cell)) or self.left(request.queue, cell)
            return f"{self.wording.needs_of(request, option, cell)}; {left}"
        if not least:
            return self.wording.needs(request.shape, option)
        names = self.wording.tree.cell_names
        short = [c for c, amount in least if amount > self.charged.avail(request.queue, c)]
        asked = [c for c, _ in least if names[c][0] == flavor]
        cell = self.wording.first(request.shape, short or asked or [c for c, _ in least])
        return f"{self.wording.needs_of(request, option, cell)}; {self.left(request.queue, cell)}"

    def left(self, queue: int, cell: int) -> str:
        """`queue research has 8 of 24 left and may borrow 4`: of its guarantee, and beyond it; and its limit, where it
        is that which keeps it from borrowing more."""
        key = (queue, cell)
        if key not in self._left:
            tree = self.wording.tree
            name = tree.cell_names[cell][1]
            guaranteed = tree.guaranteed[queue][cell]
            avail = max(0, self.charged.avail(queue, cell))
            own = min(avail, max(0, guaranteed - self.charged.below[queue * self.charged.width + cell]))
            has = f"{number_of(name, own)} of {number_of(name, guaranteed)} left"
            left = f"queue {tree.queues[queue].name} has {has} and may borrow {number_of(name, avail - own)}"
            self._left[key] = left + self._limited(queue, cell)
        return self._left[key]

    def _limited(self, queue: int, cell: int) -> str:
        """`: its limit of 4 is in use`, where there would be more to have without it."""
        tree, charged = self.wording.tree, self.charged
        at = queue * charged.width + cell
        limit, below, above = tree.limit[queue][cell], charged.below[at], tree.parent[queue]
        spare = (tree.total if above < 0 else tree.kept)[queue][cell] - charged.used[at]
        if above >= 0:
            spare = max(0, spare) + charged.avail(above, cell)
        if spare <= limit - below or charged.avail(queue, cell) < limit - below:
            return ""
        name = tree.cell_names[cell][1]
        bound = f"its limit of {number_of(name, limit)}"
        return f": {bound} is in use" if below >= limit else f": {number_of(name, below)} of {bound} in use"

    def room(self, shape: Shape, option: int) -> tuple[str, str]:
        """What the first role lacks that finds no room, and its flavor; "" when each of them does."""
        way = shape.options[option]
        known = self._rooms.get(way)
        if known is None:
            blocked = blocked_in(self.now, shape, option, self._barren, empty=False)
            known = (way.flavors[0], "") if blocked is None else (blocked.pod.flavor, of_role(shape, blocked))
            self._rooms[way] = known
        return known

    def no_room(self, request: Request, option: int, *, reserved: bool) -> str:
        """Quota first, if there is one, then what the nodes have left."""
        flavor, text = self.room(request.shape, option)
        if reserved:
            text = f"{text}; what is free is promised" if text else "there is room, promised"
            text += " to a gang that comes first"
        elif not text:
            several = sum(len(spot.roles) for spot in request.shape.options[option].spots) > 1
            text = "room for each of its roles, but not for all of them" if several else "room came free just now"
        return f"{self.quota(request, option, flavor)}; {text}"


def waits(
    facts: Memo, ledger: Ledger, refusals: Mapping[str, Refusal], expected: Mapping[str, float]
) -> Iterator[Wait]:
    """What to tell every gang that waits, in the order of the snapshot. Who is told what was told before, of the memo,
    is told it by the same object."""
    explainer = Explainer(facts.wording, ledger.charged, ledger.now)
    sentences: dict[tuple[Request, str, int], str] = {}
    positions: dict[str, int] = {}
    for leaf in facts.leaves.values():
        waiting = [w.gang.uid for w in leaf.everyone if w.gang.uid in refusals]
        positions.update(zip(waiting, count(1), strict=False))
    requests, told = facts.requests, facts.told
    for gang in facts.snapshot.waiting:
        uid = gang.uid
        refusal = refusals.get(uid)
        if refusal is None:
            continue
        code, text, position, at = refusal.code, refusal.text, positions.get(uid), expected.get(uid)
        if not text:
            request = requests[uid].request
            key = (request, code, refusal.option)
            known = sentences.get(key)
            if known is None:
                foreign = facts.verdicts.is_foreign(request)
                known = sentences[key] = _sentence(explainer, request, refusal, foreign=foreign)
            text = known
        wait = told.get(uid)
        if (
            wait is None
            or wait.message != text
            or wait.position != position
            or wait.estimated_start != at
            or wait.code != code
        ):
            wait = told[uid] = Wait(uid, code, text, position, at)
        yield wait


def _sentence(explainer: Explainer, request: Request, refusal: Refusal, *, foreign: bool) -> str:
    if refusal.code == "QuotaExceeded":
        return explainer.quota(request, refusal.option)
    text = explainer.no_room(request, refusal.option, reserved=refusal.code == "Reserved")
    return f"{text}; even without other gangs, pods that are not Muster's take room that it needs" if foreign else text
