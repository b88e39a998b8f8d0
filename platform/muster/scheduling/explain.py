"""One sentence for every gang that waits, with the numbers that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster.model import Wait
from muster.quota import Charges
from muster.scheduling.fit import fits
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.order import leaf_order
from muster.scheduling.refuse import Refusal
from muster.scheduling.room import Room
from muster.scheduling.shape import Option, Request, Shape, largest_step
from muster.scheduling.shortage import Shortage
from muster.scheduling.units import amount_of, headline, number_of, pods_of


@dataclass(frozen=True, slots=True)
class Explainer:
    """Sentences about the state of things at the end of a plan. What several of them share is worded once."""

    facts: Memo
    charged: Charges
    now: Room
    _heads: dict[Shape, str] = field(default_factory=dict)
    _needs: dict[tuple[Option, str], str] = field(default_factory=dict)
    _left: dict[tuple[int, int], str] = field(default_factory=dict)
    _rooms: dict[Option, tuple[str, str]] = field(default_factory=dict)

    def head(self, shape: Shape) -> str:
        """The resource a person thinks of first."""
        if shape not in self._heads:
            self._heads[shape] = headline(name for role in shape.roles for name, _ in role.request)
        return self._heads[shape]

    def needs(self, shape: Shape, option: int, resource: str | None = None) -> str:
        """`needs 16 GPUs of h200`."""
        name = resource or self.head(shape)
        key = (shape.options[option], name)
        if key not in self._needs:
            total: dict[str, int] = {}
            for role, size, flavor in zip(shape.roles, shape.least, key[0].flavors, strict=True):
                total[flavor] = total.get(flavor, 0) + size * role.request.get(name)
            parts = [f"{amount_of(name, amount)} of {flavor}" for flavor, amount in total.items() if amount]
            at_least = "at least " if shape.steps else ""
            self._needs[key] = f"needs {at_least}{' and '.join(parts) or amount_of('pods', sum(shape.least))}"
        return self._needs[key]

    def quota(self, request: Request, option: int, flavor: str | None = None) -> str:
        """`needs 16 GPUs of h200; queue research has 8 of 24 left and may borrow 4`, of the scarcest resource.

        Where none is short it is about `flavor`, if that is given.
        """
        least = request.least[option]
        if not least:
            return self.needs(request.shape, option)
        cell = least[0][0]
        if len(least) > 1:
            short = [c for c, amount in least if amount > self.charged.avail(request.queue, c)]
            asked = [c for c, _ in least if self.facts.tree.cell_names[c][0] == flavor]
            cell = self._first(request.shape, short or asked or [c for c, _ in least])
        resource = self.facts.tree.cell_names[cell][1]
        return f"{self.needs(request.shape, option, resource)}; {self.left(request.queue, cell)}"

    def left(self, queue: int, cell: int) -> str:
        """`queue research has 8 of 24 left and may borrow 4`: of its guarantee, and beyond it."""
        key = (queue, cell)
        if key not in self._left:
            tree = self.facts.tree
            name = tree.cell_names[cell][1]
            guaranteed = tree.guaranteed[queue][cell]
            avail = max(0, self.charged.avail(queue, cell))
            own = min(avail, max(0, guaranteed - self.charged.below[queue * self.charged.width + cell]))
            has = f"{number_of(name, own)} of {number_of(name, guaranteed)} left"
            self._left[key] = f"queue {tree.queues[queue].name} has {has} and may borrow {number_of(name, avail - own)}"
        return self._left[key]

    def room(self, shape: Shape, option: int) -> tuple[str, str]:
        """What the first role lacks that finds no room, and its flavor; "" when each of them does."""
        way = shape.options[option]
        if way not in self._rooms:
            blocked = self._blocked(shape, option, self.now)
            self._rooms[way] = (
                (way.flavors[0], "") if blocked is None else (blocked.pod.flavor, _of_role(shape, blocked))
            )
        return self._rooms[way]

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

    def too_large(self, shape: Shape) -> str:
        """Names the largest that would fit an empty cluster, or what no node has."""
        blocked = self._blocked(shape, 0, self.facts.ideal)
        if blocked is None:
            return f"{self.needs(shape, 0)}; the empty cluster holds each of its roles, but not all of them"
        span = self.facts.table.flavors[blocked.pod.flavor]
        inside = f" in one {span.tiers[blocked.tier].name}" if blocked.tier else ""
        sizes, role = list(shape.least), shape.roles.index(blocked.role)

        def with_pods(pods: int) -> bool:
            sizes[role] = pods
            return fits(self.facts.table, shape.options[0], tuple(sizes), self.facts.ideal)

        found = largest_step(blocked.size - 1, lambda pods: with_pods(pods) or None)
        if found is None or not found[0]:
            return f"{self.needs(shape, 0)}{inside}; {_of_role(shape, blocked)}"
        head = headline(name for name, _ in blocked.role.request)
        largest = f"{found[0]} of its {pods_of(blocked.size)}"
        if head != "pods":
            largest += f", {amount_of(head, found[0] * blocked.role.request.get(head))}"
        whose = f"role {blocked.role.name}: " if len(shape.roles) > 1 else ""
        return f"{self.needs(shape, 0)}{inside}; {whose}the largest that fits the empty cluster{inside} is {largest}"

    def too_much(self, request: Request, option: int) -> str:
        """Names the most that the queue could ever use."""
        empty, least = self.facts.verdicts.empty, request.least[option]
        cell = self._first(request.shape, [c for c, amount in least if amount > empty.avail(request.queue, c)])
        resource = self.facts.tree.cell_names[cell][1]
        most = amount_of(resource, max(0, empty.avail(request.queue, cell)))
        name = self.facts.tree.queues[request.queue].name
        flavor = f" of {self.facts.tree.cell_names[cell][0]}" if len(request.shape.options) > 1 else ""
        needs = self.needs(request.shape, option, resource)
        return f"{needs}; queue {name} can never use more than {most}{flavor}"

    def _first(self, shape: Shape, cells: Sequence[int]) -> int:
        """The cell a person asks about first: the gang's headline resource if it is there."""
        names, head = self.facts.tree.cell_names, self.head(shape)
        return min(cells, key=lambda cell: (names[cell][1] != head, cell))

    def _blocked(self, shape: Shape, option: int, room: Room) -> Shortage | None:
        """The first role that finds no room by itself."""
        for spot in shape.options[option].spots:
            tier = spot.required or 0
            named = self.facts.table.flavors[spot.flavor].tiers[tier].named
            for pod, role in zip(spot.pods, spot.roles, strict=True):
                size = shape.least[role]
                if not (named & (room.counts(pod)[tier] >= size)).any():
                    return Shortage(room, shape.roles[role], pod, tier, size, empty=room is self.facts.ideal)
        return None


def _of_role(shape: Shape, blocked: Shortage) -> str:
    """What a role lacks, with its name where there are several."""
    return (f"role {blocked.role.name}: " if len(shape.roles) > 1 else "") + blocked.told()


def waits(
    facts: Memo, ledger: Ledger, refusals: Mapping[str, Refusal], expected: Mapping[str, float]
) -> Iterator[Wait]:
    """What to tell every gang that waits, in the order of the snapshot."""
    explainer = Explainer(facts, ledger.charged, ledger.now)
    sentences: dict[tuple[Request, str, int], str] = {}
    positions: dict[str, int] = {}
    ahead: dict[int, int] = {}
    for gang, request in sorted((facts.requests[uid] for uid in refusals), key=leaf_order):
        ahead[request.queue] = positions[gang.uid] = ahead.get(request.queue, 0) + 1
    for uid, (_, request) in facts.requests.items():
        refusal = refusals.get(uid)
        if refusal is None:
            continue
        text = refusal.text
        if not text:
            key = (request, refusal.code, refusal.option)
            known = sentences.get(key)
            text = sentences[key] = known or _sentence(explainer, request, refusal)
        yield Wait(uid, refusal.code, text, positions[uid] if request.queue >= 0 else None, expected.get(uid))


def _sentence(explainer: Explainer, request: Request, refusal: Refusal) -> str:
    code = refusal.code
    if code == "QuotaExceeded":
        return explainer.quota(request, refusal.option)
    if code == "LargerThanCluster":
        return explainer.too_large(request.shape)
    if code == "LargerThanQuota":
        return explainer.too_much(request, refusal.option)
    return explainer.no_room(request, refusal.option, reserved=code == "Reserved")
