"""The part of a gang that matters for scheduling, computed once for all equal gangs.

Two thousand pending gangs have a few dozen requests; what is found out about one (it does not fit now) holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np

from muster.model import MAX_AMOUNT, FlavorInfo, Gang, Placement, Resources, Role, Topology, WaitReason
from muster.quota import CellAmounts, QueueTree
from muster.scheduling.capacity import PodClass
from muster.scheduling.nodes import IntArray, NodeRule, NodeTable, node_rule

T = TypeVar("T")
_MAX_NAMES, _MAX_REJECTIONS = 8, 4
"""In one message, so that it stays below the limit of a condition's message (32 KiB)."""

RoleSizes: TypeAlias = tuple[int, ...]
"""Number of pods of each role, in the gang's order."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementGroup:
    """Roles of one gang that go to one flavor and share its domain. Tiers are indexes into the flavor's tiers."""

    flavor: str
    roles: tuple[int, ...]
    pods: tuple[PodClass, ...]  # one per role
    required: int | None
    preferred: int | None


@dataclass(frozen=True, slots=True, eq=False)
class FlavorOption:
    """One way to give every role a flavor."""

    groups: tuple[PlacementGroup, ...]
    flavors: tuple[str, ...]  # one per role


@dataclass(frozen=True, slots=True, eq=False)
class GangRequest:
    """What a gang needs, apart from its queue. Compared by identity: equal requests are the same object.

    The size of a gang is its number of extra pods: 0 is the minimum; each extra pod goes to the first elastic role that
    is not at its maximum.
    """

    roles: tuple[Role, ...]
    options: tuple[FlavorOption, ...]  # in the order to try
    rejection: tuple[WaitReason, str] | None  # why there is no option
    max_extra_pods: int  # from the minimum to the full size
    min_sizes: RoleSizes

    @classmethod
    def of(
        cls, roles: tuple[Role, ...], options: tuple[FlavorOption, ...], rejection: tuple[WaitReason, str] | None = None
    ) -> GangRequest:
        """The request of these roles."""
        extra_pods = sum(role.replicas - role.min_replicas for role in roles)
        return cls(roles, options, rejection, extra_pods, tuple(role.min_replicas for role in roles))

    def sizes(self, extra_pods: int) -> RoleSizes:
        """Pods of each role with this many extra pods."""
        if extra_pods == 0:
            return self.min_sizes
        sizes = []
        for role in self.roles:
            extra = min(extra_pods, role.replicas - role.min_replicas)
            sizes.append(role.min_replicas + extra)
            extra_pods -= extra
        return tuple(sizes)

    def options_of(self, placement: Placement) -> Iterator[int]:
        """The options whose flavors a placement uses; roles that it does not contain may have any."""
        flavor_of = {part.role: part.flavor for part in placement}
        for index, option in enumerate(self.options):
            pairs = zip(self.roles, option.flavors, strict=True)
            if all(flavor_of.get(role.name, flavor) == flavor for role, flavor in pairs):
                yield index


@dataclass(frozen=True, slots=True, eq=False)
class QueueRequest:
    """A gang request in one queue: shared by all equal gangs there."""

    gang_request: GangRequest
    queue: int  # -1: not found
    rejection: tuple[WaitReason, str] | None
    quota_per_pod: tuple[tuple[CellAmounts, ...], ...] = ()  # [option][role] what one pod charges
    min_quota: tuple[CellAmounts, ...] = ()  # [option] what the minimum charges
    coverable_guarantees: tuple[int, ...] = ()  # [option] bit i: within the guarantee of the i-th queue of the path

    def quota_at(self, option: int, sizes: RoleSizes) -> CellAmounts:
        """What the gang charges to its queue at these sizes."""
        total: dict[int, int] = {}
        for count, pod in zip(sizes, self.quota_per_pod[option], strict=True):
            for cell, amount in pod:
                total[cell] = total.get(cell, 0) + count * amount
        return tuple(total.items())


@dataclass(frozen=True, slots=True, eq=False)
class RequestArrays:
    """Requests of one option each, as arrays, indexed by number."""

    index: Mapping[QueueRequest, int]
    queue: IntArray
    amounts: IntArray  # [requests, cells]
    options: dict[FlavorOption, int]  # with the number of each
    option: IntArray  # [requests] number of the option
    sizes: tuple[tuple[int, ...], ...]  # per option

    @classmethod
    def of(cls, requests: Sequence[QueueRequest], cells: int) -> RequestArrays:
        """Arrays of these requests."""
        simple = [request for request in requests if len(request.min_quota) == 1 and request.rejection is None]
        amounts = np.zeros((len(simple), cells), dtype=np.int64)
        options: dict[FlavorOption, int] = {}
        sizes = []
        for i, request in enumerate(simple):
            for cell, amount in request.min_quota[0]:
                amounts[i, cell] = min(amount, MAX_AMOUNT)
            option = request.gang_request.options[0]
            if option not in options:
                options[option] = len(options)
                sizes.append(request.gang_request.min_sizes)
        return cls(
            index={request: i for i, request in enumerate(simple)},
            queue=np.array([request.queue for request in simple], dtype=np.int64),
            amounts=amounts,
            options=options,
            option=np.array([options[request.gang_request.options[0]] for request in simple], dtype=np.int64),
            sizes=tuple(sizes),
        )

    def plus(self, other: RequestArrays) -> RequestArrays:
        """These arrays followed by others."""
        options = dict(self.options)
        sizes = list(self.sizes)
        for option, minimum in zip(other.options, other.sizes, strict=True):
            if option not in options:
                options[option] = len(options)
                sizes.append(minimum)
        numbers = np.array([options[option] for option in other.options], dtype=np.int64)
        return RequestArrays(
            index={**self.index, **{request: i + len(self.index) for request, i in other.index.items()}},
            queue=np.concatenate([self.queue, other.queue]),
            amounts=np.concatenate([self.amounts, other.amounts]),
            options=options,
            option=np.concatenate([self.option, numbers[other.option]]),
            sizes=tuple(sizes),
        )


@dataclass(slots=True)
class RequestCache:
    """Gang requests, queue requests and pod classes, each computed once."""

    table: NodeTable
    tree: QueueTree
    flavors: Mapping[str, FlavorInfo]
    _pod_classes: dict[tuple[str, Resources, NodeRule], PodClass] = field(default_factory=dict)
    _gang_requests: dict[object, GangRequest] = field(default_factory=dict)
    _queue_requests: dict[tuple[GangRequest, int], QueueRequest] = field(default_factory=dict)
    _min_usage: dict[tuple[FlavorOption, str], IntArray] = field(default_factory=dict)
    _arrays: RequestArrays | None = None
    _arrays_cover: int = 0

    def __len__(self) -> int:
        """Number of cached requests, including those of gangs that no longer exist."""
        return len(self._queue_requests)

    def request(self, gang: Gang) -> QueueRequest:
        queue = self.tree.index.get(gang.queue, -1)
        if queue < 0:
            return QueueRequest(
                GangRequest.of(gang.roles, ()), -1, ("QueueNotFound", f"queue {gang.queue} does not exist")
            )
        key = (gang.roles, gang.flavors, gang.topology, gang.excluded_nodes, self.tree.flavors[queue])
        gang_request = self._gang_requests.get(key)
        if gang_request is None:
            gang_request = self._gang_requests[key] = self._make_gang_request(gang, self.tree.flavors[queue])
        request = self._queue_requests.get((gang_request, queue))
        if request is None:
            request = self._queue_requests[gang_request, queue] = self._make_queue_request(gang_request, queue)
        return request

    def as_arrays(self) -> RequestArrays:
        """All cached requests, as arrays."""
        new = tuple(islice(self._queue_requests.values(), self._arrays_cover, None))
        if self._arrays is None or new:
            more = RequestArrays.of(new, len(self.tree.cell_index))
            self._arrays = more if self._arrays is None else self._arrays.plus(more)
            self._arrays_cover = len(self._queue_requests)
        return self._arrays

    def min_usage(self, gang_request: GangRequest, option: int, flavor: str) -> IntArray:
        """What the minimum of a request takes of one flavor in one option, as a row of the node table."""
        key = (gang_request.options[option], flavor)
        total = self._min_usage.get(key)
        if total is None:
            total = self._min_usage[key] = np.zeros(len(self.table.columns), dtype=np.int64)
            for role, size, where in zip(gang_request.roles, gang_request.min_sizes, key[0].flavors, strict=True):
                if where == flavor:
                    total += size * self.table.to_row(role.request)
        return total

    def pod_class(self, flavor: FlavorInfo, role: Role, excluded_nodes: frozenset[str]) -> PodClass:
        """The class of a role's pods in a flavor."""
        rule = node_rule(role, flavor, excluded_nodes)
        key = (flavor.name, role.request, rule)
        kind = self._pod_classes.get(key)
        if kind is None:
            kind = self._pod_classes[key] = PodClass(flavor.name, role.request.capped(), rule)
        return kind

    def _make_queue_request(self, gang_request: GangRequest, queue: int) -> QueueRequest:
        tree = self.tree
        name = tree.queues[queue].name
        rejection = gang_request.rejection
        if tree.inactive_reason[queue]:
            rejection = ("QueueInactive", f"queue {name} admits nothing: {tree.inactive_reason[queue]}")
        elif tree.children[queue]:
            below = ", ".join(sorted(tree.queues[child].name for child in tree.children[queue]))
            rejection = ("QueueNotAllowed", f"queue {name} has child queues; submit jobs to one of these: {below}")
        elif rejection is not None:
            rejection = (
                rejection[0],
                f"{rejection[1]} (queue {name} names {', '.join(tree.flavors[queue]) or 'no flavor'})",
            )
        per_pod = tuple(
            tuple(
                tree.cell_amounts(queue, flavor, role.request)
                for flavor, role in zip(o.flavors, gang_request.roles, strict=True)
            )
            for o in gang_request.options
        )
        request = QueueRequest(gang_request, queue, rejection, per_pod)
        minimum = tuple(request.quota_at(o, gang_request.min_sizes) for o in range(len(gang_request.options)))
        coverable = tuple(
            sum(1 << i for i, q in enumerate(tree.path[queue]) if all(n <= tree.guaranteed[q][c] for c, n in amounts))
            if any(n for _, n in amounts)
            else 0  # no queue of the path guarantees anything that it requests
            for amounts in minimum
        )
        return QueueRequest(gang_request, queue, rejection, per_pod, minimum, coverable)

    def _make_gang_request(self, gang: Gang, queue_flavors: tuple[str, ...]) -> GangRequest:
        """All combinations of flavors for the groups of roles; the flavors of the first group vary slowest."""
        combinations: list[tuple[PlacementGroup, ...]] = [()]
        rejections: list[tuple[WaitReason, str]] = []
        for roles, topology in _roles_by_domain(gang):
            groups, rejection = self._placement_groups(gang, roles, topology, queue_flavors)
            rejections += [rejection] if rejection is not None else []
            combinations = [(*combination, group) for combination in combinations for group in groups]
        if rejections:
            messages = [*dict.fromkeys(message for _, message in rejections)][:_MAX_REJECTIONS]
            return GangRequest.of(gang.roles, (), (rejections[0][0], "; also: ".join(messages)))
        options = []
        for combination in combinations:
            flavor_of = {role: group.flavor for group in combination for role in group.roles}
            options.append(FlavorOption(combination, tuple(flavor_of[i] for i in range(len(gang.roles)))))
        return GangRequest.of(gang.roles, tuple(options))

    def _placement_groups(
        self, gang: Gang, roles: Sequence[int], topology: Topology, queue_flavors: tuple[str, ...]
    ) -> tuple[list[PlacementGroup], tuple[WaitReason, str] | None]:
        """The flavors that one group of roles may use, in order, or why there are none."""
        allowed_flavors = [gang.roles[i].flavors or gang.flavors or queue_flavors for i in roles]
        wanted = [flavor for flavor in allowed_flavors[0] if all(flavor in allowed for allowed in allowed_flavors)]
        usable = [self.flavors[flavor] for flavor in wanted if flavor in queue_flavors and flavor in self.flavors]
        if not usable:
            return [], self._flavor_rejection(wanted, allowed_flavors, [gang.roles[i].name for i in roles])
        levels = [level for level in (topology.required, topology.preferred) if level]
        fit = [flavor for flavor in usable if all(level in flavor.levels for level in levels)]
        if not fit:
            has = "; ".join(f"{f.name} has {', '.join(f.levels) or 'no levels'}" for f in usable)
            missing = next(level for level in levels if any(level not in f.levels for f in usable))
            return [], ("UnknownTopologyLevel", f"needs the topology level {missing}, but flavor {has}")
        groups = []
        for flavor in fit:
            span = self.table.flavors[flavor.name]
            required, preferred = (
                None if level is None else span.tier(level) for level in (topology.required, topology.preferred)
            )
            if required is not None and preferred is not None and preferred <= required:
                preferred = None  # the required domain is inside the preferred one anyway
            pods = tuple(self.pod_class(flavor, gang.roles[i], gang.excluded_nodes) for i in roles)
            groups.append(PlacementGroup(flavor.name, tuple(roles), pods, required, preferred))
        return groups, None

    def _flavor_rejection(
        self, wanted: Sequence[str], allowed_flavors: Sequence[Sequence[str]], roles: Sequence[str]
    ) -> tuple[WaitReason, str]:
        """Why roles of one domain can use none of the flavors that all of them accept, `wanted`; of these, one that
        does not exist comes first, as in the checks at submit. `allowed_flavors`: what each of the roles accepts."""
        if not all(allowed_flavors):
            return "FlavorNotAllowed", "needs nodes, but the queue may use no flavor"
        named = wanted or list(dict.fromkeys(flavor for flavors in allowed_flavors for flavor in flavors))
        missing = [flavor for flavor in named if flavor not in self.flavors]
        existing = [flavor for flavor in wanted if flavor in self.flavors]
        if existing and missing:
            do_not = "does not" if len(missing) == 1 else "do not"
            why = f"{_listed(missing, 'and')} {do_not} exist, and the queue may not use {_listed(existing, 'or')}"
            return "FlavorNotFound", f"needs nodes of flavor {_listed(wanted, 'or')}, but {why}"
        if existing:
            what = _listed(existing, "or")
            return "FlavorNotAllowed", f"needs nodes of flavor {what}, but the queue may use none of them"
        if missing:
            return "FlavorNotFound", f"needs nodes of flavor {_listed(missing, 'or')}, but no such flavor exists"
        return "FlavorNotAllowed", (
            f"needs nodes of one flavor for roles {_listed(roles, 'and')}, which share a topology domain, but they "
            "name none in common"
        )


def _listed(names: Sequence[str], word: str) -> str:
    """`a or b or c`; of many names the first ones."""
    shown = [*names[:_MAX_NAMES], *([f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else [])]
    return f" {word} ".join(shown)


def _roles_by_domain(gang: Gang) -> list[tuple[tuple[int, ...], Topology]]:
    """Roles that share a domain: all roles without a topology of their own; each other role is alone.

    Without a required level no domain has to be shared, so roles with different flavors are separate.
    """
    shared = gang.topology or Topology()
    together: dict[object, list[int]] = {}
    for i, role in enumerate(gang.roles):
        key: object = (role.flavors if shared.required is None else ()) if role.topology is None else i
        together.setdefault((role.topology is None, key), []).append(i)
    return [(tuple(roles), gang.roles[roles[0]].topology or shared) for roles in together.values()]


def largest_feasible(limit: int, attempt: Callable[[int], T | None]) -> tuple[int, T] | None:
    """The largest number of extra pods up to `limit` for which an attempt succeeds, and its result. An attempt that
    succeeds must succeed for all smaller numbers."""
    found = attempt(limit)
    if found is not None:
        return limit, found
    if limit == 0 or (found := attempt(0)) is None:
        return None
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        better = attempt(middle)
        if better is None:
            high = middle - 1
        else:
            low, found = middle, better
    return low, found
