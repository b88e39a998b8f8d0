"""JobSets and TrainJobs: several pod sets, and pods that other objects create."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from muster.api.spec import NodePods, ObjectMeta, QueueingStatus, RolePlacementStatus
from muster.cluster import PatchObject, PodView
from muster.cluster_client.release import release_all, release_patch
from muster.errors import InvalidSpec
from muster.kinds.suspended.patches import PATCH_MANAGER
from muster.kinds.suspended.read import ObjectState, read_object, read_pod_sets
from muster.kinds.suspended.table import JOB_SET, TRAIN_JOB, KindRow
from muster.kinds.suspended.workload import SuspendedWorkload
from muster.kube.sync_client import KubeClient
from muster.model import Resources
from muster.workload import transitions
from muster.workload.conditions import PODS_READY, is_condition_true
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.timeouts import Timeouts

GATES = [{"name": "muster.dev/admission"}]


def replicated(name: str, replicas: int, gpus: int, *, meta: Any = None, **more: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    template = {"spec": pod} if meta is None else {"metadata": meta, "spec": pod}
    spec = {"parallelism": 2, "completions": 2, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


def job_set(*jobs: dict[str, Any], **spec: Any) -> dict[str, Any]:
    meta = {"labels": {"muster.dev/queue": "q"}}
    return {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": list(jobs), **spec}}


def workload(row: KindRow, state: ObjectState) -> SuspendedWorkload:
    """Admitted: the leader on n0, the workers on n1."""
    places = [
        RolePlacementStatus(role="leader", flavor="h", nodes=[NodePods(node="n0", indexes="0-1")]),
        RolePlacementStatus(role="worker", flavor="h", nodes=[NodePods(node="n1", indexes="0-3")]),
    ]
    status = transitions.admit(QueueingStatus(), from_status(places), 100.0)
    meta = ObjectMeta(name="a", namespace="d", uid="u", resource_version="7/8")
    return SuspendedWorkload(row, meta, "7", state, status)


def patch_of(one: SuspendedWorkload) -> list[dict[str, Any]]:
    (write,) = one.start(one.status, Observation(100.0), Timeouts()).writes
    assert isinstance(write, PatchObject)
    assert isinstance(write.patch, list)
    assert write.patch[:2] == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/spec/suspend", "value": False},
    ]
    return list(write.patch[2:])


def test_each_replicated_job_is_a_pod_set_and_one_without_replicas_is_none() -> None:
    state = read_object(
        JOB_SET, job_set(replicated("leader", 1, 8), replicated("worker", 2, 4), replicated("no", 0, 1))
    )
    one = workload(JOB_SET, state)
    assert [(role.name, role.replicas) for role in one.roles()] == [("leader", 2), ("worker", 4)]
    assert one.roles()[1].request == Resources.of({"nvidia.com/gpu": 4, "pods": 1})
    with pytest.raises(InvalidSpec, match="at most 100000 pods"):
        read_object(JOB_SET, job_set(replicated("worker", 10**6, 1)))


def test_templates_of_a_list_get_gate_label_and_annotation_by_operations_beside_what_they_have() -> None:
    meta = {"labels": {"a": "b"}, "annotations": {}}
    state = read_object(JOB_SET, job_set(replicated("leader", 1, 8), replicated("worker", 2, 4, meta=meta)))
    first, second = (f"/spec/replicatedJobs/{number}/template/spec/template" for number in (0, 1))
    constants = {
        "labels": {"muster.dev/attempt": "0"},
        "annotations": {"muster.dev/queue": "q", "muster.dev/object": "u/leader/a"},
    }
    assert patch_of(workload(JOB_SET, state)) == [
        {"op": "add", "path": f"{first}/metadata", "value": constants},
        {"op": "add", "path": f"{first}/spec/schedulingGates", "value": GATES},
        {"op": "add", "path": f"{second}/metadata/labels/muster.dev~1attempt", "value": "0"},
        {"op": "add", "path": f"{second}/metadata/annotations/muster.dev~1queue", "value": "q"},
        {"op": "add", "path": f"{second}/metadata/annotations/muster.dev~1object", "value": "u/worker/a"},
        {"op": "add", "path": f"{second}/spec/schedulingGates", "value": GATES},
    ]


def test_a_train_job_has_the_pod_sets_of_its_job_set_and_gets_one_runtime_patch() -> None:
    sets = read_pod_sets(JOB_SET, job_set(replicated("leader", 1, 8), replicated("worker", 2, 4)))
    assert read_object(TRAIN_JOB, {"spec": {"suspend": True}}).pod_sets == ()

    def patch(*managers: str, listed: bool = True) -> dict[str, Any]:
        spec = {"suspend": True, **({"runtimePatches": [{"manager": one} for one in managers]} if listed else {})}
        state = replace(read_object(TRAIN_JOB, {"spec": spec}), pod_sets=sets)
        (operation,) = patch_of(workload(TRAIN_JOB, state))
        return operation

    assert (patch(listed=False)["op"], patch(listed=False)["path"]) == ("add", "/spec/runtimePatches")
    assert patch("theirs")["path"] == "/spec/runtimePatches/-"
    again = patch("theirs", "muster.dev/operator")
    assert (again["op"], again["path"]) == ("replace", "/spec/runtimePatches/1")
    assert again["value"]["manager"] == "muster.dev/operator"
    jobs = again["value"]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == ["leader", "worker"]
    assert jobs[1]["template"]["spec"]["template"] == {
        "metadata": {
            "labels": {"muster.dev/attempt": "0"},
            "annotations": {"muster.dev/queue": "", "muster.dev/object": "u/worker/a"},
        },
        "spec": {"schedulingGates": GATES},
    }


def test_pods_that_are_created_after_others_need_not_be_ready_for_it_to_run() -> None:
    later = replicated("worker", 2, 4, dependsOn=[{"name": "leader", "status": "Complete"}])
    one = workload(JOB_SET, read_object(JOB_SET, job_set(replicated("leader", 1, 8), later, suspend=False)))
    pods = tuple(PodView(f"p{i}", "u", "leader", i, 0, "n0", "Running", ready=True) for i in range(2))
    shown = one.observe(one.status, Observation(101.0, pods), Timeouts()).next
    assert is_condition_true(shown.status, PODS_READY)
    assert not is_condition_true(
        one.observe(one.status, Observation(101.0, pods[:1]), Timeouts()).next.status, PODS_READY
    )


def test_a_release_takes_gates_pins_and_the_runtime_patch_away_and_leaves_gates_of_others() -> None:
    state = read_object(JOB_SET, job_set(replicated("leader", 1, 8)))
    assert release_patch(JOB_SET, state) is None
    job = replicated("leader", 1, 8)
    job["template"]["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "theirs"}, *GATES]
    patch = release_patch(JOB_SET, read_object(JOB_SET, job_set(job)))
    path = "/spec/replicatedJobs/0/template/spec/template/spec/schedulingGates"
    assert patch == [{"op": "add", "path": path, "value": [{"name": "theirs"}]}]
    train = read_object(TRAIN_JOB, {"spec": {"runtimePatches": [{"manager": "a"}, {"manager": "muster.dev/operator"}]}})
    assert release_patch(TRAIN_JOB, train) == [{"op": "remove", "path": "/spec/runtimePatches/1"}]


def test_a_release_takes_nothing_out_of_a_list_that_was_changed_meanwhile() -> None:
    """An operation names a place in the list, where another patch may be by then."""
    sent: list[Any] = []

    class Client:
        def list_items(self, path: str) -> list[dict[str, Any]]:
            if "trainjobs" not in path:
                return []
            meta = {"name": "a", "namespace": "d", "resourceVersion": "7"}
            return [{"metadata": meta, "spec": {"suspend": True, "runtimePatches": [{"manager": PATCH_MANAGER}]}}]

        def request(self, method: str, path: str, body: Any, **options: Any) -> None:
            sent.append(body)

    (released,) = release_all(cast("KubeClient", Client()), None, dry_run=False)
    assert released.result == "released"
    assert sent == [
        [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "remove", "path": "/spec/runtimePatches/0"},
        ]
    ]
