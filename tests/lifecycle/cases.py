"""Jobs in the middle of their lives, for tests of the lifecycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api import spec
from muster.cluster import CreatePod, DeletePod, Heartbeat, NodeView, PodView, RecordEvent
from muster.lifecycle import Observation, ReconcileResult, Timeouts, pod_name, pod_slots, reconcile_job, transitions
from muster.model import Placement, Resources, RolePlacement

NOW = 1000.0
BOUNDS = Timeouts(backoff_s=10)
PLACEMENT: Placement = (RolePlacement("trainer", "h200", (("n0", 2), ("n1", 1))),)
NODES = {name: NodeView(name, Resources.of({"pods": 10})) for name in ("n0", "n1", "n2")}


def job(
    pods: int = 3, *, least: int | None = None, grace: int = 30, uid: str = "u1", **fields: Any
) -> spec.TrainingJob:
    template = {"spec": {"containers": [{}], "terminationGracePeriodSeconds": grace}}
    role = {"name": "trainer", "replicas": pods, "minReplicas": least, "template": template}
    body = {"roles": [role], **fields}
    return spec.TrainingJob.model_validate({"metadata": {"name": "a", "uid": uid, "generation": 1}, "spec": body})


def admitted(
    wanted: spec.TrainingJob | None = None, at: float = NOW, placement: Placement = PLACEMENT
) -> spec.TrainingJob:
    """The job as it is right after its admission was written."""
    wanted = wanted or job()
    fresh = reconcile_job(wanted, Observation(at), BOUNDS).status
    return with_status(wanted, transitions.admit(fresh, placement, at))


def running(wanted: spec.TrainingJob | None = None, at: float = NOW) -> spec.TrainingJob:
    """The job once all its pods are ready."""
    one = admitted(wanted, at)
    return with_status(one, reconcile(one, pods_of(one), now=at).status)


def pods_of(one: spec.TrainingJob, phase: Any = "Running") -> tuple[PodView, ...]:
    """The pods of the job's present attempt, in the order of its placement."""
    meta, status = one.metadata, one.status
    return tuple(
        PodView(
            pod_name(meta.name, meta.uid, slot.role, slot.index, status.attempt),
            meta.uid, slot.role, slot.index, status.attempt, slot.node, phase, ready=phase == "Running",
        )
        for slot in pod_slots(status.placement)
    )  # fmt: skip


def reconcile(
    one: spec.TrainingJob,
    pods: tuple[PodView, ...] = (),
    *,
    now: float = NOW,
    heartbeat: Heartbeat | None = None,
    nodes: dict[str, NodeView] | None = None,
) -> ReconcileResult:
    """The lifecycle's answer."""
    return reconcile_job(one, Observation(now, pods, heartbeat, NODES if nodes is None else nodes), BOUNDS)


def with_status(one: spec.TrainingJob, status: spec.TrainingJobStatus) -> spec.TrainingJob:
    return one.model_copy(update={"status": status})


def failed(pod: PodView, code: int | None = 1, at: float = NOW, reason: str = "Error", log: str = "") -> PodView:
    return replace(pod, phase="Failed", ready=False, exit_code=code, finished_at=at, reason=reason, log_tail=log)


def condition(status: spec.TrainingJobStatus, kind: str) -> tuple[str, str]:
    """(status, reason) of a condition; ("", "") when it is not there."""
    found = next((c for c in status.conditions if c.type == kind), None)
    return ("", "") if found is None else (found.status, found.reason)


def deleted(result: ReconcileResult) -> list[str]:
    return [action.name for action in result.writes if isinstance(action, DeletePod)]


def created(result: ReconcileResult) -> list[tuple[int, str]]:
    return [(action.index, action.node) for action in result.writes if isinstance(action, CreatePod)]


def events(result: ReconcileResult) -> list[str]:
    return [action.reason for action in result.writes if isinstance(action, RecordEvent)]
