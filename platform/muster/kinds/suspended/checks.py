"""Why an admitted object is requeued although its own controller would let it run, or fail it."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.spec import QueueingStatus
from muster.cluster import PodView
from muster.workload import transitions
from muster.workload.blame import add_blamed_nodes, is_node_at_fault, nodes_to_exclude, withdraw_evidence
from muster.workload.conditions import is_evicting, with_status_fields
from muster.workload.observation import Observation
from muster.workload.protocol import Transition
from muster.workload.timeouts import Timeouts

_CONTROLLER_ENDS_WITHIN_S = 30.0
_MAX_MESSAGE = 200  # of what a kubelet says


def check_rejected(status: QueueingStatus, observation: Observation, timeouts: Timeouts) -> Transition | None:
    """Requeue an object of which a kubelet rejects a pod, with a pause that grows, and exclude the node: its controller
    would create the next pod for the same node, and fail the object after a few."""
    rejected, now = _rejected(status, observation.pods), observation.now
    if not rejected or is_evicting(status):
        return None
    excluded = nodes_to_exclude(status, observation, rejected)
    faulty = {pod.node for pod in rejected if is_node_at_fault(pod)}
    entries = add_blamed_nodes(status.blamed_nodes, excluded - faulty, transitions.POD_UNSUITABLE, now, timeouts)
    entries = add_blamed_nodes(entries, excluded & faulty, transitions.POD_REJECTED, now, timeouts)
    entries = withdraw_evidence(entries, status.rejections + 1)
    blamed = with_status_fields(status, {"blamed_nodes": entries, "rejections": status.rejections + 1})
    message = rejection_message(status, observation.pods)
    message += f"; starts again after {transitions.backoff_s(blamed, transitions.POD_REJECTED, timeouts):g} s"
    evicted = transitions.evict(blamed, transitions.POD_REJECTED, message, now)
    return Transition(evicted, ("Warning", transitions.POD_REJECTED, message))


def rejection_message(status: QueueingStatus, pods: Iterable[PodView]) -> str:
    """Which node has rejected a pod of the present attempt, and why; "" if none has."""
    rejected = _rejected(status, pods)
    if not rejected:
        return ""
    pod = rejected[0]
    return f"node {pod.node} rejected pod {pod.name}: {pod.reason}: {pod.message[:_MAX_MESSAGE]}".rstrip(": ")


def runtime_ends_at(status: QueueingStatus, deadline_s: float | None, grace_s: float) -> float | None:
    """When an object has to have ended that was admitted for a limited time. `deadline_s` is what it has now: if that
    was not extended, its controller ends it, which counts from when it was resumed, and waits for its pods."""
    promised_s = status.max_runtime_seconds
    if promised_s is None or status.admitted_at is None:
        return None
    if deadline_s is None or deadline_s > promised_s:
        return status.admitted_at + promised_s + _CONTROLLER_ENDS_WITHIN_S
    begin = status.started_at
    return None if begin is None else begin + promised_s + grace_s + _CONTROLLER_ENDS_WITHIN_S


def check_promised_runtime(status: QueueingStatus, due: float | None, now: float) -> Transition | None:
    """Requeue an object that runs for longer than it was admitted for: it may have been backfilled before others, since
    it would end in time. Its user has extended its deadline since, or has suspended it, which begins it anew."""
    if due is None or now < due or is_evicting(status):
        return None
    message = f"it has run for longer than the {status.max_runtime_seconds} s that it was admitted for"
    evicted = transitions.evict(status, "RuntimeExtended", message, now)
    return Transition(evicted, ("Normal", "RuntimeExtended", message))


def _rejected(status: QueueingStatus, pods: Iterable[PodView]) -> list[PodView]:
    found = (pod for pod in pods if pod.rejected and pod.attempt == status.attempt and not pod.is_made_up)
    return sorted(found, key=lambda pod: pod.name)
