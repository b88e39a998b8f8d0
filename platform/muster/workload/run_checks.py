"""What the pods of an admitted workload show, whatever its kind: all are ready, it ran too long, or a node is drained.

A check returns None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec import QueueingStatus
from muster.cluster import PodView
from muster.workload import transitions
from muster.workload.conditions import FAILED, PODS_READY, S, is_condition_true, set_condition, with_status_fields
from muster.workload.observation import Observation
from muster.workload.placement import nodes_of, pod_count
from muster.workload.protocol import Transition


def is_ready(pod: PodView) -> bool:
    """Whether the pod is ready, or has completed."""
    return pod.phase == "Succeeded" or (pod.phase == "Running" and pod.ready)


def check_max_runtime(status: QueueingStatus, max_runtime_s: float | None, field: str, now: float) -> Transition | None:
    """Fail a workload that has run for its declared maximum since its admission; `field` of its kind declares it."""
    ends_at = None if max_runtime_s is None or status.admitted_at is None else status.admitted_at + max_runtime_s
    if ends_at is None or now < ends_at:
        return None
    message = f"ran for its {field} of {max_runtime_s:.0f}"
    ended = transitions.finish(status, FAILED, "MaxRuntimeExceeded", message, now)
    return Transition(ended, ("Warning", "MaxRuntimeExceeded", message))


def check_drained(status: QueueingStatus, observation: Observation) -> Transition | None:
    """Requeue a workload of which a node is drained: neither a failure nor a counted node loss."""
    views = ((name, observation.nodes.get(name)) for name in sorted(nodes_of(status.placement)))
    drained = [name for name, view in views if view is not None and view.draining]
    if not drained:
        return None
    verb = "is" if len(drained) == 1 else "are"
    message = f"node{'s' * (len(drained) != 1)} {', '.join(drained)} {verb} being drained"
    evicted = transitions.evict(status, "Drained", message, observation.now)
    return Transition(evicted, ("Normal", "Drained", message))


def check_ready(status: S, pods: Sequence[PodView], finished: int, now: float) -> S | None:
    """The status once all pods of the placement are ready; `finished` more have completed and were deleted."""
    wanted = pod_count(status.placement)
    if is_condition_true(status, PODS_READY) or sum(map(is_ready, pods)) + finished < wanted:
        return None
    fields = {
        "started_at": now if status.started_at is None else status.started_at,
        "pods_ready": wanted,
        "requeue_after": None,
        "start_retries": 0,
        "rejections": 0,
    }
    message = f"all {wanted} pods are ready" if wanted > 1 else "the pod is ready"
    return set_condition(with_status_fields(status, fields), PODS_READY, True, "Ready", message, now)
