"""Gangs that cannot start even in an empty cluster, and the reason why a gang waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from muster.model import Gang, WaitReason
from muster.quota import QueueTree
from muster.scheduling.capacity import FreeCapacity
from muster.scheduling.fit import fits
from muster.scheduling.gang_requests import GangRequest, QueueRequest
from muster.scheduling.request_messages import RequestMessages


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
