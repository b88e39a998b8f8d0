"""Batch Jobs as documents, as Workloads, and their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api.spec import NodePods, ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import PodView
from muster.kinds.suspended.read import read_object
from muster.kinds.suspended.table import BATCH_JOB
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.workload import transitions
from muster.workload.placement import from_status

PLACES = [RolePlacementStatus(role="pods", flavor="h", nodes=[NodePods(node=f"n{i}", indexes=str(i)) for i in (0, 1)])]


def document(pod: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 7, **(pod or {})}}
    wanted = {"suspend": True, "parallelism": 2, "template": template, **spec}
    return {"metadata": {"labels": {"muster.dev/queue": "q"}}, "spec": wanted, "status": status or {}}


def workload(one: dict[str, Any], *, admitted: bool = True, known: bool = True) -> SuspendedWorkload:
    """`known`: pods of such a template have been seen, and request what it says."""
    status = transitions.admit(QueueingStatus(), from_status(PLACES), 100.0) if admitted else QueueingStatus()
    meta = ObjectMeta(name="a", namespace="d", uid="u", resource_version="7/8")
    state = read_object(BATCH_JOB, one)
    if known:
        state = replace(state, pod_sets=tuple(replace(one, known_request=one.shape.request) for one in state.pod_sets))
    return SuspendedWorkload(BATCH_JOB, meta, "7", state, status)


def pod(name: str, node: str = "", phase: Any = "Running", attempt: int = 0, **more: Any) -> PodView:
    return PodView(name, "u", "pods", 0, attempt, node, phase, **more)
