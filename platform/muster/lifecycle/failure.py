"""What went wrong with an attempt, and what follows from it.

The cause of a gang's end is its earliest failing container: the others fail because of it. Node loss, eviction and
resize are never failures. A node is blamed only by evidence that tells it from the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Literal

from muster.cluster import NodeView, PodView
from muster.lifecycle.timeouts import Timeouts
from muster.spec import BlamedNode, FailurePolicy, LastFailure

FailureAction = Literal["RestartGang", "RestartElsewhere", "FailJob"]

SHARED_BLAME_WINDOW_S = 600.0
_INFRASTRUCTURE_REASONS = frozenset({"Preempting", "Shutdown", "Terminated", "NodeShutdown", "NodeAffinity",
                                 "UnexpectedAdmissionError", "DisruptionTarget"})  # fmt: skip


def first_failed_pod(pods: Iterable[PodView]) -> PodView | None:
    """The pod that failed earliest; None when none has ended so. One of which a rank has failed while others of it
    still end may be the cause, too: it takes pods along that end before it does."""
    pods = tuple(pods)
    if all(pod.phase != "Failed" for pod in pods):
        return None
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.phase == "Running" and pod.failed_at is not None)]
    late = float("inf")
    return min(failed, key=lambda pod: (late if (at := _failed_at(pod)) is None else at, pod.name))


def _failed_at(pod: PodView) -> float | None:
    return pod.finished_at if pod.failed_at is None else pod.failed_at


def is_infrastructure_failure(pod: PodView) -> bool:
    """True when the kubelet or a foreign pod ended it, not the job: it counts as a lost pod."""
    return pod.reason in _INFRASTRUCTURE_REASONS or pod.reason.startswith("OutOf")


def matching_action(policy: FailurePolicy, pod: PodView) -> FailureAction | None:
    """What the first rule says that matches the exit code or the pod's reason; None when no rule does."""
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
    """For a person: "pod x-trainer-0-1a2b3 on n1 exited with code 42 (Error)"."""
    ended = f"exited with code {pod.exit_code}" if pod.exit_code is not None else "failed"
    return f"pod {pod.name} on {pod.node} {ended}" + (f" ({pod.reason})" if pod.reason else "")


def add_blamed_nodes(
    blamed: list[BlamedNode], nodes: Iterable[str], now: float, timeouts: Timeouts
) -> list[BlamedNode]:
    """The list with these nodes blamed from now on; expired entries leave, the newest are kept."""
    fresh = sorted(set(nodes))
    kept = [entry for entry in blamed if entry.until > now and entry.node not in fresh]
    new = [BlamedNode(node=node, until=now + timeouts.blame_ttl_s) for node in fresh]
    return [*kept, *new][-timeouts.max_blamed_nodes :]


_NON_NODE_BLOCKERS = frozenset({"Unschedulable", "Image", "Volume"})


def nodes_to_blame_for_start(
    unready: Iterable[tuple[str, PodView | None]], ready: Iterable[PodView], *, exceeds_sandbox_timeout: bool
) -> list[str]:
    """Nodes to blame for a start timeout, of the late pods by node (None: never created).

    A node where no pod got ready is to blame if pods got ready elsewhere, or, where the timeout was `long_enough` for
    any node, if it did not even make the sandbox of a pod. What waits for room that a foreign pod took, for an image or
    for a volume says nothing of its node; neither does a pod that runs and does not get ready, if none did.
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
    """True when what ran on the node cannot run any more: deleted, out of service, or unknown for too long."""
    if node is None or node.out_of_service:
        return True
    return (
        not node.ready
        and node.not_ready_since is not None
        and now >= node.not_ready_since + timeouts.force_delete_after_s
    )


def shared_blamed_nodes(blamed: Mapping[str, Iterable[BlamedNode]], now: float, node_count: int) -> dict[str, float]:
    """Nodes that no job should start on, each until when: two jobs failed there within 10 minutes. By job uid.

    None, where that were more than half of all `nodes`: what fails everywhere, as in an outage of the pod network, is
    not the fault of single nodes, and an hour without the cluster would follow.
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
