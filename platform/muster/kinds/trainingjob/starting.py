"""A gang that does not start: its pods are not ready in time, or a kubelet rejects one of them.

Neither is a failure of the job. The gang is deleted whole and requeued after a backoff that grows with each further
time, and nodes against which there is evidence are excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.api.spec import LastFailure, TrainingJobStatus
from muster.cluster import PodView
from muster.kinds.trainingjob.attempt_context import AttemptContext
from muster.kinds.trainingjob.failure import matching_action
from muster.kinds.trainingjob.pods import pod_name
from muster.workload import transitions
from muster.workload.blame import (
    MAX_REJECTING_NODES,
    add_blamed_nodes,
    is_node_at_fault,
    nodes_to_blame_for_start,
    nodes_to_exclude,
)
from muster.workload.conditions import FAILED, with_status_fields
from muster.workload.placement import pod_slots
from muster.workload.protocol import Transition
from muster.workload.run_checks import is_ready
from muster.workload.transitions import POD_REJECTED, POD_UNSUITABLE, REJECTIONS, START_TIMEOUT

_MAX_MESSAGE = 1000  # characters of a kubelet's message


def requeue_late_gang(context: AttemptContext) -> Transition:
    """Requeue a gang that is not ready within its start timeout; fail it after maxStartRetries."""
    now = context.observation.now
    ready = {(pod.role, pod.index): pod for pod in context.pods if is_ready(pod)}
    pods = {(pod.role, pod.index): pod for pod in context.pods}
    wanted = list(pod_slots(context.status.placement))
    late = [slot for slot in wanted if (slot.role, slot.index) not in ready.keys() | context.finished]
    blockers = Counter(pod.pending_reason for slot in late if (pod := pods.get((slot.role, slot.index))) is not None)
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(blockers.items()) if name)
    who = f"{len(late)} of {len(wanted)} pods were" if len(wanted) > 1 else "the pod was"
    timeout_s = context.job.spec.start_timeout_seconds
    message = f"{who} not ready within {timeout_s} s{f' ({counts})' if counts else ''}"
    late_pods = ((slot.node, pods.get((slot.role, slot.index))) for slot in late)
    blamed = nodes_to_blame_for_start(
        late_pods, ready.values(), exceeds_sandbox_timeout=timeout_s >= context.timeouts.sandbox_timeout_s
    )
    meta = context.job.metadata
    failure = LastFailure(
        pod=pod_name(meta.name, meta.uid, late[0].role, late[0].index, context.status.attempt),
        node=late[0].node,
        reason=START_TIMEOUT,
        log_tail=message,
        at=now,
    )
    return _retry_start(context, _with_failure(context, failure, blamed, START_TIMEOUT), message)


def _retry_start(context: AttemptContext, status: TrainingJobStatus, message: str) -> Transition:
    now, most, retries = (
        context.observation.now,
        context.job.spec.failure_policy.max_start_retries,
        status.start_retries,
    )
    if most is not None and retries >= most:
        message = f"{message}; start retries: {retries}, maxStartRetries: {most}"
        return Transition(
            transitions.finish(status, FAILED, START_TIMEOUT, message, now), ("Warning", "Failed", message)
        )
    status = with_status_fields(status, {"start_retries": retries + 1})
    limit = "" if most is None else f" of {most}"
    message = (
        f"{message}; start retry {retries + 1}{limit} after "
        f"{transitions.backoff_s(status, START_TIMEOUT, context.timeouts):g} s"
    )
    return Transition(transitions.evict(status, START_TIMEOUT, message, now), ("Warning", START_TIMEOUT, message))


def check_rejected(context: AttemptContext) -> Transition | None:
    """Requeue a gang of which a kubelet rejects a pod, and exclude the node. The third such start in a row fails the
    job if three nodes have rejected its pods and none accepts one of this role: the pods are at fault then, and no
    longer evidence against these nodes."""
    policy = context.job.spec.failure_policy
    rejected = [pod for pod in context.pods if pod.rejected and matching_action(policy, pod) is None]
    if not rejected:
        return None
    now, pod = context.observation.now, min(rejected, key=lambda pod: (pod.role, pod.index))
    rejections, nodes = context.status.rejections + 1, {pod.node for pod in rejected}
    failure = LastFailure(pod=pod.name, node=pod.node, reason=pod.reason, log_tail=pod.message[:_MAX_MESSAGE], at=now)
    faulty = {pod.node for pod in rejected if is_node_at_fault(pod)}
    excluded = nodes_to_exclude(context.status, context.observation, rejected)
    status = _with_failure(context, failure, excluded - faulty, POD_UNSUITABLE)
    entries = add_blamed_nodes(status.blamed_nodes, excluded & faulty, POD_REJECTED, now, context.timeouts)
    status = with_status_fields(status, {"blamed_nodes": entries, "rejections": rejections})
    message = f"node {pod.node} rejected pod {pod.name}: {pod.reason}: {failure.log_tail}"
    blamed = {entry.node for entry in status.blamed_nodes if entry.reason in REJECTIONS} | nodes
    if min(rejections, len(blamed)) >= MAX_REJECTING_NODES and not _is_role_accepted(pod.role, context.pods):
        message = f"{message}; {len(blamed)} nodes have rejected its pods: {', '.join(sorted(blamed))}"
        others = [entry for entry in status.blamed_nodes if entry.reason not in REJECTIONS]
        status = with_status_fields(status, {"blamed_nodes": others})  # all jobs would avoid healthy nodes
        return Transition(
            transitions.finish(status, FAILED, POD_REJECTED, message, now), ("Warning", "Failed", message)
        )
    message = f"{message}; starts again after {transitions.backoff_s(status, POD_REJECTED, context.timeouts):g} s"
    return Transition(transitions.evict(status, POD_REJECTED, message, now), ("Warning", POD_REJECTED, message))


def _is_role_accepted(role: str, pods: Iterable[PodView]) -> bool:
    """Whether a kubelet has accepted a pod of the role."""
    return any(pod.role == role and (pod.accepted or pod.phase in ("Running", "Succeeded")) for pod in pods)


def _with_failure(
    context: AttemptContext, failure: LastFailure, blamed: Iterable[str], reason: str
) -> TrainingJobStatus:
    """The status with its last failure, and nodes excluded for this reason."""
    nodes = add_blamed_nodes(context.status.blamed_nodes, blamed, reason, context.observation.now, context.timeouts)
    return with_status_fields(context.status, {"last_failure": failure, "blamed_nodes": nodes})
