"""Observed states of two nodes with jobs and pods, and the snapshots built from them."""

from __future__ import annotations

from typing import Any

from tests.engine.objects import flavor, job, nodes, queue

from muster.api import spec
from muster.cluster import PodView
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kinds.trainingjob.pods import pod_name
from muster.model import Placement, RolePlacement, Snapshot
from muster.state import BuildResult, ClusterState, build_snapshot, snapshot_of
from muster.workload import transitions
from muster.workload.observed import ObservedState

NOW = 1000.0
PLACED: Placement = (RolePlacement("trainer", "any", (("n0", 1), ("n1", 1))),)


def observed_state(
    *jobs: spec.TrainingJob, pods: dict[str, tuple[PodView, ...]] | None = None, **fields: Any
) -> ObservedState:
    parts: dict[str, Any] = {"nodes": tuple(nodes(2)), "flavors": (flavor(),), "queues": (queue(),), **fields}
    return ObservedState(now=NOW, workloads=tuple(map(TrainingJobWorkload, jobs)), pods=pods or {}, **parts)


def advance(state: ClusterState, observed: ObservedState, **fields: Any) -> BuildResult:
    """The snapshot of the next cycle."""
    return build_snapshot(state, observed, state.update(observed), **fields)


def named(name: str, **fields: Any) -> spec.TrainingJob:
    one = job(name, **fields)
    meta = one.metadata.model_copy(update={"uid": name})
    return one.model_copy(update={"metadata": meta, "status": spec.TrainingJobStatus(submitted_at=NOW - 10)})


def admitted(name: str, **fields: Any) -> spec.TrainingJob:
    one = named(name, **fields)
    return one.model_copy(update={"status": transitions.admit(one.status, PLACED, NOW - 5)})


def released(name: str, **fields: Any) -> spec.TrainingJob:
    """A job that was admitted, and waits again."""
    one = named(name, **fields)
    return one.model_copy(update={"status": one.status.model_copy(update={"attempt": 1})})


def pod(one: spec.TrainingJob, index: int, node: str, attempt: int = 0, phase: Any = "Running") -> PodView:
    uid = one.metadata.uid
    return PodView(pod_name(uid, uid, "trainer", index, attempt), uid, "trainer", index, attempt, node, phase)


def snapshot(*jobs: spec.TrainingJob, **fields: Any) -> Snapshot:
    return snapshot_of(observed_state(*jobs, **fields)).snapshot
