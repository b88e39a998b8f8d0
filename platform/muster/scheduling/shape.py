"""What of a gang matters for where it may go, worked out once for all gangs that are alike.

Two thousand waiting gangs have a few dozen shapes; what is found out about one (it fits nowhere now) holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np

from muster.model import LARGEST, Flavor, Gang, Resources, Role, Topology, WaitCode
from muster.quota import Amounts, QueueTree
from muster.scheduling.nodes import IntArray, NodeRule, NodeTable, node_rule
from muster.scheduling.room import PodKind

T = TypeVar("T")

Sizes: TypeAlias = tuple[int, ...]
"""Pods of each role, in the gang's order."""


@dataclass(frozen=True, slots=True, eq=False)
class Spot:
    """Roles of one gang that go to one flavor and share its domain. Tiers are indexes into the flavor's tiers."""

    flavor: str
    roles: tuple[int, ...]
    pods: tuple[PodKind, ...]  # one a role
    required: int | None
    preferred: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to give every role a flavor."""

    spots: tuple[Spot, ...]
    flavors: tuple[str, ...]  # one a role


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a gang needs, apart from its queue. Compared by identity: equal shapes are the same object.

    A gang's size is told by its step: 0 is the minimum, each step adds one pod to the first elastic role that is not
    yet full.
    """

    roles: tuple[Role, ...]
    options: tuple[Option, ...]  # in the order to try
    trouble: tuple[WaitCode, str] | None  # why there is no option
    steps: int  # from the minimum to the full size
    least: Sizes

    @classmethod
    def of(
        cls, roles: tuple[Role, ...], options: tuple[Option, ...], trouble: tuple[WaitCode, str] | None = None
    ) -> Shape:
        """The shape of these roles."""
        steps = sum(role.replicas - role.min_replicas for role in roles)
        return cls(roles, options, trouble, steps, tuple(role.min_replicas for role in roles))

    def sizes(self, step: int) -> Sizes:
        """Pods of each role at a step."""
        if step == 0:
            return self.least
        sizes = []
        for role in self.roles:
            extra = min(step, role.replicas - role.min_replicas)
            sizes.append(role.min_replicas + extra)
            step -= extra
        return tuple(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A shape asked for in one queue: the same for all gangs of that shape there."""

    shape: Shape
    queue: int  # -1: not found
    trouble: tuple[WaitCode, str] | None
    per_pod: tuple[tuple[Amounts, ...], ...] = ()  # [option][role] what one pod charges
    least: tuple[Amounts, ...] = ()  # [option] what the minimum charges
    could: tuple[int, ...] = ()  # [option] bit i: that much is guaranteed to the i-th queue of the path

    def amounts(self, option: int, sizes: Sizes) -> Amounts:
        """What the gang charges to its queue at these sizes."""
        total: dict[int, int] = {}
        for count, pod in zip(sizes, self.per_pod[option], strict=True):
            for cell, amount in pod:
                total[cell] = total.get(cell, 0) + count * amount
        return tuple(total.items())


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests of one option each, as arrays, in the order of their numbers."""

    index: Mapping[Request, int]
    queue: IntArray
    amounts: IntArray  # [requests, cells]
    options: dict[Option, int]  # each with its number
    option: IntArray  # [requests] number of the option
    sizes: tuple[tuple[int, ...], ...]  # of each option

    @classmethod
    def of(cls, requests: Sequence[Request], cells: int) -> Requests:
        """Lay requests out."""
        simple = [request for request in requests if len(request.least) == 1 and request.trouble is None]
        amounts = np.zeros((len(simple), cells), dtype=np.int64)
        options: dict[Option, int] = {}
        sizes = []
        for i, request in enumerate(simple):
            for cell, amount in request.least[0]:
                amounts[i, cell] = min(amount, LARGEST)
            option = request.shape.options[0]
            if option not in options:
                options[option] = len(options)
                sizes.append(request.shape.least)
        return cls(
            index={request: i for i, request in enumerate(simple)},
            queue=np.array([request.queue for request in simple], dtype=np.int64),
            amounts=amounts,
            options=options,
            option=np.array([options[request.shape.options[0]] for request in simple], dtype=np.int64),
            sizes=tuple(sizes),
        )

    def plus(self, more: Requests) -> Requests:
        """These, and then the others."""
        options = dict(self.options)
        sizes = list(self.sizes)
        for option, least in zip(more.options, more.sizes, strict=True):
            if option not in options:
                options[option] = len(options)
                sizes.append(least)
        place = np.array([options[option] for option in more.options], dtype=np.int64)
        return Requests(
            index={**self.index, **{request: i + len(self.index) for request, i in more.index.items()}},
            queue=np.concatenate([self.queue, more.queue]),
            amounts=np.concatenate([self.amounts, more.amounts]),
            options=options,
            option=np.concatenate([self.option, place[more.option]]),
            sizes=tuple(sizes),
        )


@dataclass(slots=True)
class Shapes:
    """Shapes, requests and pod kinds that have been worked out, each once."""

    table: NodeTable
    tree: QueueTree
    flavors: Mapping[str, Flavor]
    _kinds: dict[tuple[str, Resources, NodeRule], PodKind] = field(default_factory=dict)
    _shapes: dict[object, Shape] = field(default_factory=dict)
    _requests: dict[tuple[Shape, int], Request] = field(default_factory=dict)
    _takes: dict[tuple[Option, str], IntArray] = field(default_factory=dict)
    _lined_up: Requests | None = None
    _lined_up_at: int = 0

    def __len__(self) -> int:
        """How many requests are remembered, those of gangs that are long gone included."""
        return len(self._requests)

    def request(self, gang: Gang) -> Request:
        """What a gang asks for in its queue."""
        queue = self.tree.index.get(gang.queue, -1)
        if queue < 0:
            shape = Shape.of(gang.roles, ())
            return Request(shape, -1, ("QueueNotFound", f"queue {gang.queue} does not exist"))
        key = (gang.roles, gang.flavors, gang.topology, gang.avoid, self.tree.flavors[queue])
        shape_known = self._shapes.get(key)
        if shape_known is None:
            shape_known = self._shapes[key] = self._shape(gang, self.tree.flavors[queue])
        request = self._requests.get((shape_known, queue))
        if request is None:
            request = self._requests[shape_known, queue] = self._request(shape_known, queue)
        return request

    def lined_up(self) -> Requests:
        """All requests that have been worked out, as arrays."""
        new = tuple(islice(self._requests.values(), self._lined_up_at, None))
        if self._lined_up is None or new:
            more = Requests.of(new, len(self.tree.cells))
            self._lined_up = more if self._lined_up is None else self._lined_up.plus(more)
            self._lined_up_at = len(self._requests)
        return self._lined_up

    def takes(self, shape: Shape, option: int, flavor: str) -> IntArray:
        """What a shape's minimum takes of one flavor in one of its options, as a row of the node table."""
        key = (shape.options[option], flavor)
        total = self._takes.get(key)
        if total is None:
            total = self._takes[key] = np.zeros(len(self.table.columns), dtype=np.int64)
            for role, size, where in zip(shape.roles, shape.least, key[0].flavors, strict=True):
                if where == flavor:
                    total += size * self.table.amounts(role.request)
        return total

    def kind(self, flavor: Flavor, role: Role, avoid: frozenset[str]) -> PodKind:
        """The kind of a role's pods in a flavor."""
        rule = node_rule(role, flavor, avoid)
        key = (flavor.name, role.request, rule)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = PodKind(flavor.name, role.request.capped(), rule)
        return kind

    def _request(self, shape: Shape, queue: int) -> Request:
        tree = self.tree
        name = tree.queues[queue].name
        trouble = shape.trouble
        if tree.trouble[queue]:
            trouble = ("QueueInactive", f"queue {name} admits nothing: {tree.trouble[queue]}")
        elif tree.children[queue]:
            below = ", ".join(sorted(tree.queues[child].name for child in tree.children[queue]))
            trouble = ("QueueNotAllowed", f"queue {name} has queues below it, jobs go to those: {below}")
        elif trouble is not None:
            trouble = (trouble[0], f"{trouble[1]} (queue {name} names {', '.join(tree.flavors[queue]) or 'no flavor'})")
        per_pod = tuple(
            tuple(
                tree.amounts(queue, flavor, role.request) for flavor, role in zip(o.flavors, shape.roles, strict=True)
            )
            for o in shape.options
        )
        request = Request(shape, queue, trouble, per_pod)
        least = tuple(request.amounts(o, shape.least) for o in range(len(shape.options)))
        could = tuple(
            sum(1 << i for i, q in enumerate(tree.path[queue]) if all(n <= tree.guaranteed[q][c] for c, n in amounts))
            if any(n for _, n in amounts)
            else 0  # nothing that it asks for is guaranteed to anybody on its path
            for amounts in least
        )
        return Request(shape, queue, trouble, per_pod, least, could)

    def _shape(self, gang: Gang, named: tuple[str, ...]) -> Shape:
        """Every way to give the groups of roles a flavor each, the wishes of the first group varying slowest."""
        ways: list[tuple[Spot, ...]] = [()]
        for roles, topology in _groups(gang):
            spots, trouble = self._spots(gang, roles, topology, named)
            if trouble is not None:
                return Shape.of(gang.roles, (), trouble)
            ways = [(*way, spot) for way in ways for spot in spots]
        options = []
        for way in ways:
            flavor_of = {role: spot.flavor for spot in way for role in spot.roles}
            options.append(Option(way, tuple(flavor_of[i] for i in range(len(gang.roles)))))
        return Shape.of(gang.roles, tuple(options))

    def _spots(
        self, gang: Gang, roles: Sequence[int], topology: Topology, named: tuple[str, ...]
    ) -> tuple[list[Spot], tuple[WaitCode, str] | None]:
        """The flavors that one group of roles may go to, in order, or why there are none."""
        wishes = [gang.roles[i].flavors or gang.flavors or named for i in roles]
        wanted = [flavor for flavor in wishes[0] if all(flavor in wish for wish in wishes)]
        known = [self.flavors[flavor] for flavor in wanted if flavor in named and flavor in self.flavors]
        if not known:
            what = " or ".join(wanted) or "of any kind that all its roles accept"
            why = "the queue may use none of them" if set(wanted) & set(self.flavors) else "no such flavor exists"
            return [], ("UnknownFlavor", f"needs nodes of flavor {what}, but {why}")
        levels = [level for level in (topology.required, topology.preferred) if level]
        fit = [flavor for flavor in known if all(level in flavor.levels for level in levels)]
        if not fit:
            has = "; ".join(f"{f.name} has {', '.join(f.levels) or 'no levels'}" for f in known)
            missing = next(level for level in levels if any(level not in f.levels for f in known))
            return [], ("UnknownTopologyLevel", f"needs the topology level {missing}, but flavor {has}")
        spots = []
        for flavor in fit:
            span = self.table.flavors[flavor.name]
            required, preferred = (
                None if level is None else span.tier(level) for level in (topology.required, topology.preferred)
            )
            if required is not None and preferred is not None and preferred <= required:
                preferred = None  # the required domain lies inside of it anyway
            pods = tuple(self.kind(flavor, gang.roles[i], gang.avoid) for i in roles)
            spots.append(Spot(flavor.name, tuple(roles), pods, required, preferred))
        return spots, None


def _groups(gang: Gang) -> list[tuple[tuple[int, ...], Topology]]:
    """Roles that share a domain: all those without a topology of their own; each other role is by itself.

    Without a required level nothing has to be shared, so roles that wish for different flavors stay apart.
    """
    shared = gang.topology or Topology()
    together: dict[object, list[int]] = {}
    for i, role in enumerate(gang.roles):
        key: object = (role.flavors if shared.required is None else ()) if role.topology is None else i
        together.setdefault((role.topology is None, key), []).append(i)
    return [(tuple(roles), gang.roles[roles[0]].topology or shared) for roles in together.values()]


def largest_step(steps: int, attempt: Callable[[int], T | None]) -> tuple[int, T] | None:
    """The largest step from 0 up to `steps` that an attempt succeeds for, and its result.

    What succeeds for one step has to succeed for the smaller ones too.
    """
    found = attempt(steps)
    if found is not None:
        return steps, found
    if steps == 0 or (found := attempt(0)) is None:
        return None
    low, high = 0, steps - 1
    while low < high:
        middle = (low + high + 1) // 2
        better = attempt(middle)
        if better is None:
            high = middle - 1
        else:
            low, found = middle, better
    return low, found
