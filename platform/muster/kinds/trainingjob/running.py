"""Starts and stops the pods of a TrainingJob: it creates and deletes them itself."""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import CreatePod, DeletePod, PodView, Write
from muster.kinds.trainingjob.pods import pod_name, role_grace_period_s
from muster.workload.node_loss import is_node_lost
from muster.workload.observation import Observation
from muster.workload.placement import PodSlot, pod_slots, pods_of_placement, recorded_finished_pods
from muster.workload.protocol import RunWrites
from muster.workload.timeouts import Timeouts


def create_missing_pods(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> RunWrites:
    """Create missing pods of the present attempt, once no pod of older ones or outside its placement is left."""
    own = {pod.name for pod in pods_of_placement(status, observation.pods)}
    stale = [pod for pod in observation.pods if pod.name not in own]
    stops = delete_pods(job, stale, observation, timeouts)
    if any(pod.holds_capacity for pod in stale):
        return stops
    if status.requeue_after is not None and observation.now < status.requeue_after:
        return RunWrites(stops.writes, (*stops.wake_times, status.requeue_after))
    present = (pod for pod in observation.pods if pod.name in own or not pod.tombstone)
    have = recorded_finished_pods(status) | {(pod.role, pod.index) for pod in present}
    slots = (slot for slot in pod_slots(status.placement) if (slot.role, slot.index) not in have)
    created = (_create_pod(job, slot, status.attempt, observation.max_grace_s) for slot in slots)
    return RunWrites((*stops.writes, *created), stops.wake_times)


def _create_pod(job: TrainingJob, slot: PodSlot, attempt: int, max_grace_s: float) -> CreatePod:
    meta = job.metadata
    return CreatePod(
        job_uid=meta.uid,
        name=pod_name(meta.name, meta.uid, slot.role, slot.index, attempt),
        role=slot.role,
        index=slot.index,
        replicas=slot.replicas,
        attempt=attempt,
        node=slot.node,
        flavor=slot.flavor,
        rank0_node=slot.rank0_node,
        grace_s=role_grace_period_s(job, slot.role, max_grace_s),
    )


def delete_pods(job: TrainingJob, pods: Sequence[PodView], observation: Observation, timeouts: Timeouts) -> RunWrites:
    """Delete pods, and tombstones; those on a lost node without waiting for its kubelet."""
    writes: list[Write] = []
    wake_times: list[float] = []
    for pod in pods:
        node = observation.nodes.get(pod.node)
        if is_node_lost(node, observation.now, timeouts):
            writes.append(DeletePod(pod.job_uid, pod.name, 0.0, force=True))
            continue
        if node is not None and node.not_ready_since is not None:
            wake_times.append(node.not_ready_since + timeouts.force_delete_after_s)
        grace_s = role_grace_period_s(job, pod.role, observation.max_grace_s)
        stops_too_late = pod.grace_s is not None and pod.grace_s > max(1.0, grace_s)  # 0 is written as 1
        if pod.tombstone or not pod.deleting or stops_too_late:
            writes.append(DeletePod(pod.job_uid, pod.name, grace_s))
    return RunWrites(tuple(writes), tuple(wake_times))
