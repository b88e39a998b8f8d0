"""Which requests can never start as nodes and queues are, and messages about requests: what they need, what they lack.

Feasibility does not depend on what runs, so it is kept until nodes or queues change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np

from muster.model import Gang, Role, WaitReason
from muster.quota import QueueTree, QuotaUsage
from muster.scheduling.capacity import FreeCapacity, PodClass
from muster.scheduling.fit import fits
from muster.scheduling.gang_requests import FlavorOption, GangRequest, QueueRequest, largest_feasible
from muster.scheduling.nodes import BoolArray, FlavorNodes, NodeTable, selector_mismatch
from muster.text import join_first


@dataclass(frozen=True, slots=True)
class RequestMessages:
    """Messages about requests, cached."""

    table: NodeTable
    tree: QueueTree
    allocatable: FreeCapacity  # of an empty cluster: no pods at all, all nodes schedulable
    no_usage: QuotaUsage  # no gang charged
    _main_resources: dict[GangRequest, str] = field(default_factory=dict)
    _needs_cache: dict[tuple[FlavorOption, str], str] = field(default_factory=dict)
    _needs_of_cache: dict[tuple[QueueRequest, int, int], str] = field(default_factory=dict)
    _no_fit_cache: NoFitCache = field(default_factory=dict)

    def main_resource(self, gang_request: GangRequest) -> str:
        """The resource that messages name if none is given: see `main_resource`."""
        resource = self._main_resources.get(gang_request)
        if resource is None:
            resource = self._main_resources[gang_request] = main_resource(
                name for role in gang_request.roles for name, _ in role.request
            )
        return resource

    def needs(self, gang_request: GangRequest, option: int, resource: str | None = None) -> str:
        """`needs 16 GPUs of h200`."""
        name = resource or self.main_resource(gang_request)
        key = (gang_request.options[option], name)
        needs = self._needs_cache.get(key)
        if needs is None:
            total: dict[str, int] = {}
            for role, size, flavor in zip(gang_request.roles, gang_request.min_sizes, key[0].flavors, strict=True):
                total[flavor] = total.get(flavor, 0) + size * role.request.get(name)
            parts = [f"{format_amount(name, amount)} of {flavor}" for flavor, amount in total.items() if amount]
            at_least = "at least " if gang_request.max_extra_pods else ""
            needs = f"needs {at_least}{' and '.join(parts) or format_amount('pods', sum(gang_request.min_sizes))}"
            self._needs_cache[key] = needs
        return needs

    def needs_of(self, request: QueueRequest, option: int, cell: int) -> str:
        """`needs` for the resource of a quota cell."""
        key = (request, option, cell)
        needs = self._needs_of_cache.get(key)
        if needs is None:
            needs = self._needs_of_cache[key] = self.needs(request.gang_request, option, self.tree.cell_names[cell][1])
        return needs

    def larger_than_cluster(self, gang_request: GangRequest) -> str:
        """Names the largest number of pods that fits an empty cluster, or what no node has."""
        shortage = find_shortage(self.allocatable, gang_request, 0, self._no_fit_cache, empty=True)
        if shortage is None:
            return f"{self.needs(gang_request, 0)}; an empty cluster fits each role alone, but not all roles together"
        role, span = shortage.role, self.table.flavors[shortage.pod.flavor]
        domain = f"one {span.tiers[shortage.tier].name}" if shortage.tier else ""
        needs = self.needs(gang_request, 0) + (f" in {domain}" if domain else "")
        sizes, index = list(gang_request.min_sizes), gang_request.roles.index(role)

        def with_pods(pods: int) -> bool:
            sizes[index] = pods
            return fits(self.table, gang_request.options[0], tuple(sizes), self.allocatable)

        found = largest_feasible(shortage.size - 1, lambda pods: with_pods(pods) or None)
        if found is None or not found[0]:
            return f"{needs}; {shortage_message(gang_request, shortage)}"
        resource = main_resource(name for name, _ in role.request)
        largest = f"{found[0]} of {format_pods(shortage.size)}"
        if resource != "pods":
            largest += f", {format_amount(resource, found[0] * role.request.get(resource))}"
        prefix = f"role {role.name}: " if len(gang_request.roles) > 1 else ""
        where = f"{domain} of an empty cluster" if domain else "an empty cluster"
        return f"{needs}; {prefix}{where} fits at most {largest}"

    def larger_than_quota(self, request: QueueRequest, option: int) -> str:
        """Names the most that the queue can ever use."""
        empty, amounts = self.no_usage, request.min_quota[option]
        cell = self.main_cell(
            request.gang_request, [c for c, amount in amounts if amount > empty.available(request.queue, c)]
        )
        resource = self.tree.cell_names[cell][1]
        most = format_amount(resource, max(0, empty.available(request.queue, cell)))
        name = self.tree.queues[request.queue].name
        flavor = f" of {self.tree.cell_names[cell][0]}" if len(request.gang_request.options) > 1 else ""
        needs = self.needs(request.gang_request, option, resource)
        return f"{needs}; queue {name} can never use more than {most}{flavor}"

    def main_cell(self, gang_request: GangRequest, cells: Sequence[int]) -> int:
        """The cell of the gang's main resource, or else the first."""
        names, resource = self.tree.cell_names, self.main_resource(gang_request)
        return min(cells, key=lambda cell: (names[cell][1] != resource, cell))


def find_shortage(
    capacity: FreeCapacity, gang_request: GangRequest, option: int, no_fit_cache: NoFitCache, *, empty: bool
) -> RoleShortage | None:
    """The first role that does not fit by itself; `no_fit_cache` must be of the same capacity."""
    for group in gang_request.options[option].groups:
        tier = group.required or 0
        named = capacity.table.flavors[group.flavor].tiers[tier].is_named
        for pod, role in zip(group.pods, group.roles, strict=True):
            size = gang_request.min_sizes[role]
            if not (named & (capacity.counts(pod)[tier] >= size)).any():
                return RoleShortage(capacity, gang_request.roles[role], pod, tier, size, empty, no_fit_cache)
    return None


def shortage_message(gang_request: GangRequest, shortage: RoleShortage) -> str:
    """What a role lacks; with the role's name if the gang has several."""
    return (f"role {shortage.role.name}: " if len(gang_request.roles) > 1 else "") + shortage.message()


@dataclass(frozen=True, slots=True)
class UnschedulableReason:
    """Why a gang waits: reason, the option that its message is about, and the message if known already."""

    reason: WaitReason
    option: int = 0
    message: str = ""


@cache
def unschedulable_reason(reason: WaitReason, option: int = 0) -> UnschedulableReason:
    """A reason whose message is made at the end of the plan."""
    return UnschedulableReason(reason, option)


@dataclass(slots=True)
class Feasibility:
    """Which requests can never start, and why; cached by request while nodes and queues are the same."""

    messages: RequestMessages
    empty_cluster: FreeCapacity  # without gangs, all nodes up; `messages.allocatable` without unmanaged pods
    _reasons: dict[QueueRequest, UnschedulableReason | None] = field(default_factory=dict)
    _fitting_options: dict[GangRequest, tuple[int, ...]] = field(
        default_factory=dict
    )  # options that fit the empty cluster
    _blocked_by_unmanaged: set[QueueRequest] = field(default_factory=set)  # requests that only unmanaged pods block

    def reason(self, request: QueueRequest) -> UnschedulableReason | None:
        """Why gangs with this request could not start in an empty cluster; None if they could."""
        if request not in self._reasons:
            self._reasons[request] = self._find(request)
        return self._reasons[request]

    def is_blocked_by_unmanaged(self, request: QueueRequest) -> bool:
        """Whether gangs with this request would fit only if unmanaged pods left."""
        return request in self._blocked_by_unmanaged

    def _find(self, request: QueueRequest) -> UnschedulableReason | None:
        if request.rejection is not None:
            return UnschedulableReason(request.rejection[0], message=request.rejection[1])
        gang_request = request.gang_request
        if gang_request not in self._fitting_options:
            self._fitting_options[gang_request] = self._options_that_fit(gang_request, self.empty_cluster)
        options = self._fitting_options[gang_request]
        if self._within_quota(request, options):
            return None
        if self.messages.allocatable is not self.empty_cluster:
            options = self._options_that_fit(gang_request, self.messages.allocatable)
            allowed = self._within_quota(request, options)
            if allowed:
                self._blocked_by_unmanaged.add(request)
                return unschedulable_reason(_capacity_reason(gang_request, allowed[0]), allowed[0])
        healthy = self._within_quota(request, self._options_with_all_devices(gang_request))
        if healthy:
            devices = unhealthy_nodes(self.messages.table, gang_request.options[healthy[0]])
            message = f"{self.messages.needs(gang_request, healthy[0])}; {devices}"
            return UnschedulableReason(_capacity_reason(gang_request, healthy[0]), healthy[0], message)
        if not options:
            return UnschedulableReason("LargerThanCluster", message=self.messages.larger_than_cluster(gang_request))
        return UnschedulableReason("LargerThanQuota", options[0], self.messages.larger_than_quota(request, options[0]))

    def _options_with_all_devices(self, gang_request: GangRequest) -> tuple[int, ...]:
        """The options that would fit an empty cluster if all devices were healthy; none where all are."""
        table = self.messages.table
        if table.capacity is table.allocatable:
            return ()
        capacity = FreeCapacity(self.empty_cluster.masks, table.capacity, ignore_health=True)
        return self._options_that_fit(gang_request, capacity)

    def _options_that_fit(self, gang_request: GangRequest, capacity: FreeCapacity) -> tuple[int, ...]:
        fitting = (
            fits(self.messages.table, option, gang_request.min_sizes, capacity) for option in gang_request.options
        )
        return tuple(index for index, fit in enumerate(fitting) if fit)

    def _within_quota(self, request: QueueRequest, options: tuple[int, ...]) -> tuple[int, ...]:
        """The options that the queue could ever have quota for."""
        return tuple(index for index in options if self.messages.no_usage.fits(request.queue, request.min_quota[index]))


def _capacity_reason(gang_request: GangRequest, option: int) -> WaitReason:
    inside = any(group.required is not None for group in gang_request.options[option].groups)
    return "TopologyUnsatisfiable" if inside else "InsufficientResources"


def unhealthy_nodes(table: NodeTable, option: FlavorOption) -> str:
    """`n-1 has 7 of its 8 GPUs`: nodes of an option with devices that are not healthy, of the resources it requests."""
    requested = {(pod.flavor, name) for group in option.groups for pod in group.pods for name, _ in pod.request}
    found = table.unhealthy_devices(requested)
    named = [f"{node} has {format_number(name, has)} of its {format_amount(name, of)}" for node, name, has, of in found]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more nodes lack devices" if len(named) > 3 else "")


def priority_too_high(tree: QueueTree, gang: Gang, request: QueueRequest) -> UnschedulableReason | None:
    """A priority above the maximum of its queue or of a queue above."""
    cap = tree.priority_caps[request.queue] if request.queue >= 0 else None
    if cap is None or gang.priority <= cap:
        return None
    return UnschedulableReason(
        "PriorityTooHigh", message=f"has priority {gang.priority}; queue {gang.queue} allows at most {cap}"
    )


GPU = "nvidia.com/gpu"
GIB = 1 << 30

_NOUNS = {GPU: ("GPU", "GPUs"), "cpu": ("core", "cores"), "pods": ("pod slot", "pod slots")}
_BYTES = ("memory", "ephemeral-storage")


def format_amount(resource: str, amount: int) -> str:
    """An amount with its unit: GPUs, cores, pod slots, GiB, or the resource's own name."""
    if resource in _BYTES:
        return f"{format_number(resource, amount)} GiB of {resource}"
    one, many = _NOUNS.get(resource, (resource, resource))
    return f"{format_number(resource, amount)} {one if format_number(resource, amount) == '1' else many}"


def format_number(resource: str, amount: int) -> str:
    """An amount without its unit, for the second and later numbers of a sentence."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource not in _BYTES:
        return str(amount)
    gib = amount / GIB
    return f"{gib:.4g}" if gib < 10_000 else f"{gib:.0f}"


def resource_label(resource: str) -> str:
    """The name of a resource without an amount: `GPUs`, `cores`, or the resource's own name."""
    return _NOUNS.get(resource, (resource, resource))[1]


def format_pods(count: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} pod{'' if count == 1 else 's'}"


def main_resource(resources: Iterable[str]) -> str:
    """The resource that a message names first: GPUs, other devices, cores, memory; pod slots if there is no other."""
    names = list(resources)
    by_importance = (GPU, *(name for name in names if "/" in name), "cpu", *_BYTES)
    return next((name for name in by_importance if name in names), "pods")


NoFitCache: TypeAlias = dict[tuple[PodClass, int], tuple[bool, str]]
"""Why no pod of a class fits any domain of a tier, and whether free capacity is the cause. Cached, since it reads all
nodes and does not depend on the size of the gang."""


@dataclass(frozen=True, slots=True)
class RoleShortage:
    """A role that needs `size` pods inside one domain of tier `tier`, and the capacity it is checked against.

    `empty_cluster`: `capacity` is that of an empty cluster with all nodes schedulable. `no_fit_cache` is valid for
    `capacity` only, and shared by all shortages of it.
    """

    capacity: FreeCapacity
    role: Role
    pod: PodClass
    tier: int
    size: int
    empty_cluster: bool = False
    no_fit_cache: NoFitCache = field(default_factory=dict)

    def message(self) -> str:
        """The domain that fits the most pods, what it lacks, and how many nodes are down; "" if all pods fit there."""
        span = self._span
        counts = np.where(span.tiers[self.tier].is_named, self.capacity.counts(self.pod)[self.tier], 0)
        best = int(np.argmax(counts)) if len(counts) else 0
        count = int(counts[best]) if len(counts) else 0
        if count >= self.size:
            return ""
        if not count:
            return self.no_pod_message()
        edges = span.start + span.tiers[self.tier].first_node
        return (
            self._partial_message(count, best)
            + self._scarce_resources(slice(int(edges[best]), int(edges[best + 1])))
            + self._unavailable_nodes()
        )

    def no_pod_message(self) -> str:
        """Why not a single pod fits."""
        key = (self.pod, self.tier)
        if key not in self.no_fit_cache:
            self.no_fit_cache[key] = self._find_no_pod_reason()
        lacks_capacity, text = self.no_fit_cache[key]
        return f"capacity for 0 of {format_pods(self.size)}: {text}" if lacks_capacity and self.size > 1 else text

    def _find_no_pod_reason(self) -> tuple[bool, str]:
        span, up = self._span, self.capacity.usable(self.pod)
        accepted = self.capacity.masks.accepted(self.pod)
        if span.start == span.stop:
            return False, f"there is no node of {self.pod.flavor}"
        if not accepted.any():
            nodes = self.capacity.table.nodes[span.start : span.stop]
            lacks = selector_mismatch(self.role.node_selector, nodes)
            detail = f"has {lacks}" if lacks else "accepts its pods: check taints, nodeSelector and affinity"
            return False, f"no node of {self.pod.flavor} {detail}"
        if not up.any():
            total = int(accepted.sum())
            return False, f"{'the only node is' if total == 1 else f'all {total} nodes are'} down, cordoned or excluded"
        inside = up & span.tiers[self.tier].is_named[span.tiers[self.tier].domain_of_node]
        if not inside.any():
            return False, f"no available node has the label of topology level {span.tiers[self.tier].name}"
        return not self.empty_cluster, self._single_node_message(inside) + self._unavailable_nodes()

    @property
    def _span(self) -> FlavorNodes:
        return self.capacity.table.flavors[self.pod.flavor]

    def _partial_message(self, count: int, domain: int) -> str:
        """`capacity for 1 of 2 pods, 8 of 16 GPUs`, or `8 GPUs free in rack r2, 16 required in one rack`."""
        resource, tier = main_resource(name for name, _ in self.role.request), self._span.tiers[self.tier]
        each = self.role.request.get(resource)
        free, required = count * each, self.size * each
        where = f" in {tier.name} {tier.domains[domain]}" if self.tier else ""
        together = f" required in one {tier.name}" if self.tier else ""
        if resource == "pods":
            return f"capacity for {count} of {format_pods(self.size)}{where}{together and f', all{together}'}"
        if self.tier:
            return f"{format_amount(resource, free)} free{where}, {format_number(resource, required)}{together}"
        return (
            f"capacity for {count} of {format_pods(self.size)}, {format_number(resource, free)} of "
            f"{format_amount(resource, required)}"
        )

    def _scarce_resources(self, rows: slice) -> str:
        """`; memory for only 1 of 2 pods`, if the main resource alone would be enough."""
        names = [name for name, _ in self.role.request]
        counts = self.capacity.counts_by_resource(self.pod, rows, names)
        if counts.get(main_resource(names), 0) < self.size:
            return ""
        short = [
            f"{resource_label(name)} for only {count} of {format_pods(self.size)}"
            for name, count in counts.items()
            if count < self.size
        ]
        return f"; {join_first(short, 'and', 'resources')}" if short else "; free resources are on different nodes"

    def _single_node_message(self, inside: BoolArray) -> str:
        """`no node has 8 GPUs free (at most 4)`."""
        table, free = self.capacity.table, self.capacity.free[self._span.start : self._span.stop][inside]
        free_word = "" if self.empty_cluster else " free"
        most = {
            name: max(0, int(free[:, table.columns[name]].max())) if name in table.columns else 0
            for name, _ in self.role.request
        }
        short = [(name, amount) for name, amount in self.role.request if most[name] < amount]
        if not short:
            names = [format_amount(name, amount) for name, amount in self.role.request if name != "pods"]
            return f"no node has {join_first(names, 'and', 'resources')}{free_word} at once"
        main = main_resource(name for name, _ in short)
        short.sort(key=lambda item: (item[0] != main, item[0]))
        parts = [f"{format_amount(name, amount)} (at most {format_number(name, most[name])})" for name, amount in short]
        if len(parts) > 1:
            return f"no node has {join_first(parts, 'or', 'resources')}{free_word}"
        amount, limit = format_amount(*short[0]), format_number(main, most[main])
        one_of_none = format_number(*short[0]) == "1" and limit == "0"
        return f"no node has {amount}{free_word}" + ("" if one_of_none else f" (at most {limit})")

    def _unavailable_nodes(self) -> str:
        """`; 1 of 2 nodes is down, cordoned or excluded`."""
        accepted = self.capacity.masks.accepted(self.pod)
        down = int((accepted & ~self.capacity.usable(self.pod)).sum())
        be = "is" if down == 1 else "are"
        return f"; {down} of {int(accepted.sum())} nodes {be} down, cordoned or excluded" if down else ""
