"""Which requests can never start as nodes and queues are, and the messages about a request that depend on these only.

They do not depend on what runs, so they are kept until nodes or queues change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from muster.model import Gang, WaitReason
from muster.quota import QueueTree, QuotaUsage
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.fit import fits
from muster.scheduling.gang_requests import FlavorOption, GangRequest, QueueRequest, largest_feasible
from muster.scheduling.nodes import NodeTable
from muster.scheduling.shortage import NoFitCache, RoleShortage, format_amount, format_pods, main_resource


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
        """The resource that messages name if none is given: see `units.main_resource`."""
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
    empty_cluster: (
        # capacity without gangs, all nodes up; `messages.allocatable` if there are no unmanaged pods either
        FreeCapacity
    )
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
                inside = any(group.required is not None for group in gang_request.options[allowed[0]].groups)
                return unschedulable_reason("TopologyUnsatisfiable" if inside else "InsufficientResources", allowed[0])
        if not options:
            return UnschedulableReason("LargerThanCluster", message=self.messages.larger_than_cluster(gang_request))
        return UnschedulableReason("LargerThanQuota", options[0], self.messages.larger_than_quota(request, options[0]))

    def _options_that_fit(self, gang_request: GangRequest, capacity: FreeCapacity) -> tuple[int, ...]:
        """The options that fit a capacity."""
        fitting = (
            fits(self.messages.table, option, gang_request.min_sizes, capacity) for option in gang_request.options
        )
        return tuple(index for index, fit in enumerate(fitting) if fit)

    def _within_quota(self, request: QueueRequest, options: tuple[int, ...]) -> tuple[int, ...]:
        """The options that the queue could ever have quota for."""
        return tuple(index for index in options if self.messages.no_usage.fits(request.queue, request.min_quota[index]))


def priority_too_high(tree: QueueTree, gang: Gang, request: QueueRequest) -> UnschedulableReason | None:
    """A priority above the maximum of its queue or of a queue above."""
    cap = tree.priority_caps[request.queue] if request.queue >= 0 else None
    if cap is None or gang.priority <= cap:
        return None
    return UnschedulableReason(
        "PriorityTooHigh", message=f"has priority {gang.priority}; queue {gang.queue} allows at most {cap}"
    )
