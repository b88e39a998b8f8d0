"""One sentence for every gang that waits, with the numbers that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from muster.model import Resources, Wait
from muster.quota import Charges
from muster.scheduling.fit import fits
from muster.scheduling.ledger import Ledger
from muster.scheduling.memo import Memo
from muster.scheduling.order import leaf_order
from muster.scheduling.refuse import Refusal
from muster.scheduling.room import PodKind, Room
from muster.scheduling.shape import Option, Request, Shape, Spot, largest_step

GPU = "nvidia.com/gpu"
GIB = 1 << 30


def amount_of(resource: str, amount: int) -> str:
    """An amount as a person says it: GPUs, cores, pods, GiB, or the resource's own name."""
    if resource == GPU:
        return f"{amount} GPU" if amount == 1 else f"{amount} GPUs"
    if resource == "cpu":
        return "1 core" if amount == 1000 else f"{amount / 1000:g} cores"
    if resource == "pods":
        return "1 pod" if amount == 1 else f"{amount} pods"
    if resource in ("memory", "ephemeral-storage"):
        return f"{amount / GIB:.4g} GiB of {resource}"
    return f"{amount} {resource}"


def number_of(resource: str, amount: int) -> str:
    """An amount without its unit, for the second and later numbers of a sentence."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / GIB:.4g}" if resource in ("memory", "ephemeral-storage") else str(amount)


def headline(request: Resources) -> str:
    """The resource a person thinks of first."""
    names = [name for name, _ in request]
    return next((name for name in (GPU, *(n for n in names if "/" in n), "cpu") if name in names), "pods")


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
            self._heads[shape] = headline(shape.roles[0].request)
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
        """`12 free in rack r2, 16 required in one rack`, of the first roles that find no room; and their flavor."""
        way = shape.options[option]
        if way not in self._rooms:
            spot, role, size = self._blocked(shape, option, self.now)
            self._rooms[way] = spot.flavor, self._room_for(spot, spot.pods[spot.roles.index(role)], size)
        return self._rooms[way]

    def _room_for(self, spot: Spot, pod: PodKind, size: int) -> str:
        """What the best domain has left for so many pods."""
        span, tier = self.facts.table.flavors[spot.flavor], spot.required or 0
        counts = np.where(span.tiers[tier].named, self.now.counts(pod)[tier], 0)
        if not len(counts):
            return f"no node of {spot.flavor} is there"
        best, head = int(np.argmax(counts)), headline(pod.request)
        free, wanted = number_of(head, int(counts[best]) * pod.request.get(head)), size * pod.request.get(head)
        if tier == 0:
            text = f"room for {free} of {amount_of(head, wanted)}"
        else:
            level, where = span.tiers[tier].name, span.tiers[tier].domains[best]
            text = f"{free} free in {level} {where}, {number_of(head, wanted)} required in one {level}"
        if counts[best] < size:
            edges = span.start + span.tiers[tier].first_node
            text += self._scarce(pod, head, slice(int(edges[best]), int(edges[best + 1])), size)
        return text

    def no_room(self, request: Request, option: int) -> str:
        """Quota first, if there is one, then what the nodes have left."""
        flavor, text = self.room(request.shape, option)
        return f"{self.quota(request, option, flavor)}; {text}"

    def too_large(self, shape: Shape) -> str:
        """Names the largest that would fit an empty cluster."""
        spot, role, size = self._blocked(shape, 0, self.facts.ideal)
        sizes = list(shape.least)

        def with_pods(pods: int) -> bool:
            sizes[role] = pods
            return fits(self.facts.table, shape.options[0], tuple(sizes), self.facts.ideal)

        found = largest_step(size - 1, lambda pods: with_pods(pods) or None)
        most = 0 if found is None else found[0]
        head = headline(shape.roles[role].request)
        inside = f" in one {self.facts.table.flavors[spot.flavor].tiers[spot.required].name}" if spot.required else ""
        largest = (
            f"{most} of its {amount_of('pods', size)}, {amount_of(head, most * shape.roles[role].request.get(head))}"
        )
        return f"{self.needs(shape, 0)}{inside}; the largest that fits the empty cluster{inside} is {largest}"

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

    def _blocked(self, shape: Shape, option: int, room: Room) -> tuple[Spot, int, int]:
        """The first role that finds no room by itself (else the first role): its spot, index and size."""
        sizes, spots = shape.least, shape.options[option].spots
        for spot in spots:
            for pod, role in zip(spot.pods, spot.roles, strict=True):
                tier = spot.required or 0
                enough = self.facts.table.flavors[spot.flavor].tiers[tier].named & (
                    room.counts(pod)[tier] >= sizes[role]
                )
                if not enough.any():
                    return spot, role, sizes[role]
        return spots[0], spots[0].roles[0], sizes[spots[0].roles[0]]

    def _scarce(self, pod: PodKind, head: str, rows: slice, size: int) -> str:
        """`; memory is short`, if there would be enough of the headline resource."""
        if self.now.by_resource(pod, rows, (head,)).get(head, 0) < size:
            return ""
        alone = self.now.by_resource(pod, rows, tuple(name for name, _ in pod.request))
        short = [name for name, count in alone.items() if count < size]
        return f"; {' and '.join(short)} {'are' if len(short) > 1 else 'is'} short" if short else "; not on one node"


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
    text = explainer.no_room(request, refusal.option)
    return f"{text}; what is free is promised to a gang that comes first" if code == "Reserved" else text
