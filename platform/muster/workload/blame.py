"""Which nodes a job excludes after a failure, and which ones all jobs avoid.

A node is excluded only if evidence distinguishes it from the others.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from muster.api.spec import BlamedNode, QueueingStatus
from muster.cluster import PodView
from muster.workload.observation import Observation
from muster.workload.timeouts import Timeouts
from muster.workload.transitions import POD_REJECTED, POD_UNSUITABLE, REJECTIONS

SHARED_BLAME_WINDOW_S = 600.0
MAX_REJECTING_NODES = 3
Tenant: TypeAlias = tuple[str, ...]
"""Whose a job is, such as its queue and namespace. Two are of different tenants if every part differs."""


@dataclass(frozen=True, slots=True)
class AvoidedNode:
    """Until when all jobs avoid a node, and the uids of the jobs that failed there."""

    until: float
    job_uids: tuple[str, ...]


def add_blamed_nodes(
    blamed: list[BlamedNode], nodes: Iterable[str], reason: str, now: float, timeouts: Timeouts
) -> list[BlamedNode]:
    """The list with these nodes excluded from now on; expired entries are dropped, the newest are kept."""
    fresh = sorted(set(nodes))
    kept = [entry for entry in blamed if entry.until > now and entry.node not in fresh]
    new = [BlamedNode(node=node, reason=reason, at=now, until=now + timeouts.blame_ttl_s) for node in fresh]
    return [*kept, *new][-timeouts.max_blamed_nodes :]


_NON_NODE_BLOCKERS = frozenset({"Unschedulable", "Image", "Volume"})


def nodes_to_blame_for_start(
    unready: Iterable[tuple[str, PodView | None]], ready: Iterable[PodView], *, exceeds_sandbox_timeout: bool
) -> list[str]:
    """Nodes to exclude after a start timeout, from the late pods by node (None: never created).

    A node without a ready pod is excluded if pods got ready elsewhere, or, with `exceeds_sandbox_timeout`, if it did
    not even create the sandbox of a pod. A pod that is unschedulable or waits for an image or a volume is no evidence
    against its node; nor is a pod that runs without getting ready, if no pod got ready.
    """
    good = {pod.node for pod in ready}
    bad = {
        node
        for node, pod in unready
        if pod is not None
        and pod.pending_reason not in _NON_NODE_BLOCKERS
        and (good or (exceeds_sandbox_timeout and pod.pending_reason == "Node"))
    }
    return sorted(bad - good)


_NODE_AT_FAULT: Final = frozenset({"UnexpectedAdmissionError", "Evicted", "InvalidNodeInfo"})


def is_node_at_fault(pod: PodView) -> bool:
    """Whether the kubelet rejected the pod for what the node lacks: devices, amounts, disk or memory. For all other
    reasons, such as SysctlForbidden, the pod may be at fault: each node would reject it. So is one that a user has made
    up, and may request anything."""
    lacks = pod.reason in _NODE_AT_FAULT or pod.reason.startswith("OutOf")
    return pod.rejected and lacks and not pod.is_made_up


def nodes_to_exclude(status: QueueingStatus, observation: Observation, rejected: Sequence[PodView]) -> set[str]:
    """The nodes that rejected pods; none if no other node is large enough for one of them, such as in a cluster with a
    single node: the gang is tried there again."""
    nodes, now = {pod.node for pod in rejected}, observation.now
    excluded = {entry.node for entry in status.blamed_nodes if entry.until > now} | nodes
    others = [view for name, view in observation.nodes.items() if view.schedulable and name not in excluded]
    fits = all(
        any(all(view.allocatable.get(name) >= amount for name, amount in pod.request) for view in others)
        for pod in rejected
    )
    return nodes if fits else set()


def withdraw_evidence(blamed: list[BlamedNode], rejections: int) -> list[BlamedNode]:
    """The list after so many rejected starts in a row: once three nodes have rejected the pods of a job, these are at
    fault themselves, and no evidence for other jobs."""
    nodes = {entry.node for entry in blamed if entry.reason in REJECTIONS}
    if min(rejections, len(nodes)) < MAX_REJECTING_NODES:
        return blamed
    return [
        entry.model_copy(update={"reason": POD_UNSUITABLE}) if entry.reason == POD_REJECTED else entry
        for entry in blamed
    ]


def avoided_nodes(
    blamed: Mapping[str, Iterable[BlamedNode]],
    tenants: Mapping[str, Tenant],
    last_starts: Mapping[str, float],
    now: float,
    node_count: int,
) -> dict[str, AvoidedNode]:
    """Nodes to exclude for all jobs: their kubelets rejected pods of two tenants within 10 minutes for what the node
    lacks (`is_node_at_fault`), and no gang has started there since. One tenant alone could have healthy nodes excluded
    for the others; so could two whose pods do not start in time, or exit: users choose templates and programs.

    `blamed` and `tenants` are by job uid; `last_starts`: when a gang last started on a node. None if that were more
    than half of all nodes: a failure everywhere, such as a new version of the device plugin, is not caused by single
    nodes, and would make the cluster unusable for an hour.
    """
    blames: dict[str, list[tuple[float, str]]] = {}
    for uid, entries in blamed.items():
        for entry in entries:
            if entry.reason == POD_REJECTED and entry.until > now and not _has_recovered(entry, last_starts):
                blames.setdefault(entry.node, []).append((entry.until, uid))
    avoided = {}
    for node, ends in blames.items():
        found = None
        latest: dict[Tenant, tuple[float, str]] = {}  # by tenant, the latest last
        for later in sorted(ends):
            tenant = tenants[later[1]]
            others = (one for known, one in reversed(latest.items()) if all(map(operator.ne, known, tenant)))
            earlier = next(others, None)
            if earlier is not None and later[0] - earlier[0] <= SHARED_BLAME_WINDOW_S:
                found = AvoidedNode(earlier[0], (earlier[1], later[1]))  # then one of the two has expired
            latest.pop(tenant, None)
            latest[tenant] = later
        if found is not None:
            avoided[node] = found
    return avoided if 2 * len(avoided) <= node_count else {}


def _has_recovered(entry: BlamedNode, last_starts: Mapping[str, float]) -> bool:
    """Whether a gang has started on the node since."""
    return entry.at is not None and last_starts.get(entry.node, entry.at) > entry.at
