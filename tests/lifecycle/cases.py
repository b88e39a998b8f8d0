"""Jobs in the middle of their lives, for tests of the lifecycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from muster.api import spec
from muster.cluster import CreatePod, DeletePod, Heartbeat, NodeView, PodView, RecordEvent, Write
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kinds.trainingjob.pods import pod_name
from muster.model import Placement, Resources, RolePlacement
from muster.workload import transitions
from muster.workload.observation import Observation
from muster.workload.placement import pod_slots
from muster.workload.reconcile import reconcile as reconcile_workload
from muster.workload.timeouts import Timeouts

NOW = 1000.0
BOUNDS = Timeouts(backoff_s=10)
PLACEMENT: Placement = (RolePlacement("trainer", "h200", (("n0", 2), ("n1", 1))),)
NODES = {name: NodeView(name, Resources.of({"pods": 10})) for name in ("n0", "n1", "n2")}


class JobResult(NamedTuple):
    """A `ReconcileResult` of a TrainingJob."""

    status: spec.TrainingJobStatus
    writes: tuple[Write, ...]
    wake_at: float | None


def reconcile_job(one: spec.TrainingJob, observation: Observation, timeouts: Timeouts) -> JobResult:
    """The lifecycle's answer for a TrainingJob."""
    result = reconcile_workload(TrainingJobWorkload(one), observation, timeouts)
    assert isinstance(result.status, spec.TrainingJobStatus)
    return JobResult(result.status, result.writes, result.wake_at)


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
    timeouts: Timeouts = BOUNDS,
) -> JobResult:
    """The lifecycle's answer."""
    return reconcile_job(one, Observation(now, pods, heartbeat, NODES if nodes is None else nodes), timeouts)


def with_status(one: spec.TrainingJob, status: spec.TrainingJobStatus) -> spec.TrainingJob:
    return one.model_copy(update={"status": status})


def failed(pod: PodView, code: int | None = 1, at: float = NOW, reason: str = "Error", log: str = "") -> PodView:
    return replace(pod, phase="Failed", ready=False, exit_code=code, finished_at=at, reason=reason, log_tail=log)


def condition(status: spec.TrainingJobStatus, kind: str) -> tuple[str, str]:
    """(status, reason) of a condition; ("", "") when it is not there."""
    found = next((c for c in status.conditions if c.type == kind), None)
    return ("", "") if found is None else (found.status, found.reason)


def deleted(result: JobResult) -> list[str]:
    return [action.name for action in result.writes if isinstance(action, DeletePod)]


def created(result: JobResult) -> list[tuple[int, str]]:
    return [(action.index, action.node) for action in result.writes if isinstance(action, CreatePod)]


def events(result: JobResult) -> list[str]:
    return [action.reason for action in result.writes if isinstance(action, RecordEvent)]
