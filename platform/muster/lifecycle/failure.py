"""The cause of a failed attempt, and what follows from it.

The cause is the gang's earliest failing container: the others fail because of it. Node loss, eviction and resize are
never failures. A node is excluded only if evidence distinguishes it from the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Literal

from muster.api.spec import BlamedNode, FailurePolicy, LastFailure
from muster.cluster import NodeView, PodView
from muster.lifecycle.observation import Timeouts

FailureAction = Literal["RestartGang", "RestartElsewhere", "FailJob"]

SHARED_BLAME_WINDOW_S = 600.0
_INFRASTRUCTURE_REASONS = frozenset({"Preempting", "Shutdown", "Terminated", "NodeShutdown", "NodeAffinity",
                                 "UnexpectedAdmissionError", "DisruptionTarget"})  # fmt: skip


def first_failed_pod(pods: Iterable[PodView]) -> PodView | None:
    """The pod that failed earliest; None if none has. A pod of which one rank has failed while other ranks still end
    counts as well: it may have caused failures of pods that end before it."""
    pods = tuple(pods)
    if all(pod.phase != "Failed" for pod in pods):
        return None
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.phase == "Running" and pod.failed_at is not None)]
    late = float("inf")
    return min(failed, key=lambda pod: (late if (at := _failed_at(pod)) is None else at, pod.name))


def _failed_at(pod: PodView) -> float | None:
    return pod.finished_at if pod.failed_at is None else pod.failed_at


def is_infrastructure_failure(pod: PodView) -> bool:
    """Whether the kubelet or an unmanaged pod ended it, not the job: it counts as a lost pod."""
    return pod.reason in _INFRASTRUCTURE_REASONS or pod.reason.startswith("OutOf")


def matching_action(policy: FailurePolicy, pod: PodView) -> FailureAction | None:
    """The action of the first rule that matches the exit code or the pod's reason; None if none does."""
    for rule in policy.rules:
        if pod.exit_code is not None and pod.exit_code in rule.on_exit_codes:
            return rule.action
        if pod.reason and pod.reason in rule.on_pod_conditions:
            return rule.action
    return None


def to_last_failure(pod: PodView, now: float, timeouts: Timeouts) -> LastFailure:
    """What is kept of a failed pod before it is deleted."""
    tail = pod.log_tail.encode()[-timeouts.log_tail_bytes :].decode(errors="ignore")
    at = now if (known := _failed_at(pod)) is None else known
    return LastFailure(
        pod=pod.name, node=pod.node, exit_code=pod.exit_code, reason=pod.reason or "Failed", log_tail=tail, at=at
    )


def failure_message(pod: PodView) -> str:
    """ "pod x-trainer-0-1a2b3 on n1 exited with code 42 (Error)"."""
    ended = f"exited with code {pod.exit_code}" if pod.exit_code is not None else "failed"
    return f"pod {pod.name} on {pod.node} {ended}" + (f" ({pod.reason})" if pod.reason else "")


def add_blamed_nodes(
    blamed: list[BlamedNode], nodes: Iterable[str], now: float, timeouts: Timeouts
) -> list[BlamedNode]:
    """The list with these nodes excluded from now on; expired entries are dropped, the newest are kept."""
    fresh = sorted(set(nodes))
    kept = [entry for entry in blamed if entry.until > now and entry.node not in fresh]
    new = [BlamedNode(node=node, until=now + timeouts.blame_ttl_s) for node in fresh]
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


def is_node_lost(node: NodeView | None, now: float, timeouts: Timeouts) -> bool:
    """Whether pods of the node can no longer be running: deleted, out of service, or unknown for too long."""
    if node is None or node.out_of_service:
        return True
    return (
        not node.ready
        and node.not_ready_since is not None
        and now >= node.not_ready_since + timeouts.force_delete_after_s
    )


def shared_blamed_nodes(blamed: Mapping[str, Iterable[BlamedNode]], now: float, node_count: int) -> dict[str, float]:
    """Nodes to exclude for all jobs, each until when: two jobs failed there within 10 minutes. `blamed` is by job uid.

    None if that were more than half of all nodes: a failure everywhere, such as an outage of the pod network, is not
    caused by single nodes, and would make the cluster unusable for an hour.
    """
    ends: dict[str, list[float]] = {}
    for entries in blamed.values():
        for entry in entries:
            if entry.until > now:
                ends.setdefault(entry.node, []).append(entry.until)
    shared = {}
    for node, untils in ends.items():
        pairs = itertools.pairwise(sorted(untils))
        close = [earlier for earlier, later in pairs if later - earlier <= SHARED_BLAME_WINDOW_S]
        if close:
            shared[node] = max(close)  # then one of the two has expired
    return shared if 2 * len(shared) <= node_count else {}
