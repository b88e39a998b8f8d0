"""What a pod's status says: exit code, reason, what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.objects import pod_seen, read, terminated

from muster.cluster import PodView
from muster.kube.objects import V1Pod, V1PodSpec
from muster_operator.cache.cached_pod import pod_view
from muster_operator.runners.create_pods.pod_owner import pod_owner


def view_of(pod: V1Pod) -> PodView | None:
    owner = pod_owner(pod.metadata)
    return None if owner is None else pod_view(pod, owner)


def test_a_failed_pod_has_code_time_and_message_of_its_main_container() -> None:
    pod = pod_seen(
        owner="u",
        phase="Failed",
        containerStatuses=[terminated(1, "helper"), terminated(42, reason="Error", message="loss is nan")],
    )
    pod.spec.containers.append(type(pod.spec.containers[0])(name="helper"))
    view = view_of(pod)
    assert view is not None
    assert (view.exit_code, view.reason, view.log_tail) == (42, "Error", "loss is nan")
    assert view.finished_at == 1795255205.0


def test_a_pod_whose_main_container_succeeded_fails_by_the_first_failed_one() -> None:
    late, early = terminated(3, "late", "2026-11-21T10:00:09Z"), terminated(2, "early", "2026-11-21T10:00:07Z")
    view = view_of(pod_seen(owner="u", phase="Failed", containerStatuses=[late, early, terminated(0)]))
    assert view is not None
    assert view.exit_code == 2


def test_a_disruption_takes_precedence_over_the_container_reason() -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True"}]
    pod = pod_seen(
        owner="u", phase="Failed", conditions=conditions, containerStatuses=[terminated(143, reason="Error")]
    )
    view = view_of(pod)
    assert view is not None
    assert view.reason == "DisruptionTarget"


REJECTION: dict[str, Any] = {
    "phase": "Failed",
    "startTime": "2026-11-21T10:00:05Z",
    "message": "Pod was rejected: no healthy devices",
}


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity", "SomethingNew"])
def test_a_pod_that_failed_before_any_container_ran_was_rejected_by_its_kubelet(reason: str) -> None:
    view = view_of(pod_seen(owner="u", **REJECTION, reason=reason))
    assert view is not None
    assert (view.rejected, view.reason, view.message) == (True, reason, "Pod was rejected: no healthy devices")


@pytest.mark.parametrize(
    "status",
    [
        {"reason": ""},
        {"reason": "DeadlineExceeded"},
        {"reason": "NodeShutdown"},
        {"reason": "Preempting"},
        {"reason": "Evicted", "containerStatuses": [terminated(137)]},
        {"reason": "OutOfcpu", "initContainerStatuses": [terminated(1, "prepare")]},
        {"reason": "Evicted", "conditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ],
    ids=str,
)
def test_a_pod_that_ran_or_was_ended_by_another_component_was_not_rejected(status: dict[str, Any]) -> None:
    view = view_of(pod_seen(owner="u", **{**REJECTION, **status}))
    assert view is not None
    assert not view.rejected


def test_a_pod_that_a_taint_evicts_has_the_message_of_its_disruption() -> None:
    disrupted = {"type": "DisruptionTarget", "status": "True", "message": "Taint manager: deleting"}
    view = view_of(pod_seen(owner="u", conditions=[disrupted]))
    assert view is not None
    assert (view.phase, view.message) == ("Running", "Taint manager: deleting")


def test_a_pending_pod_with_a_start_time_was_accepted_by_its_kubelet() -> None:
    times: list[dict[str, Any]] = [{}, {"startTime": "2026-11-21T10:00:05Z"}]
    seen = [view_of(pod_seen(owner="u", phase="Pending", **more)) for more in times]
    assert [view is not None and view.accepted for view in seen] == [False, True]


def scheduled(status: str = "True", sandbox: str = "False", **more: Any) -> dict[str, Any]:
    kinds = {"PodScheduled": status, "PodReadyToStartContainers": sandbox}
    return {"conditions": [{"type": kind, "status": value} for kind, value in kinds.items()], **more}


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}]}


def init(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "state": {"running": {"startedAt": "2026-11-21T10:00:05Z"}}}]


@pytest.mark.parametrize(
    ("status", "of_spec", "blocker"),
    [
        ({}, {}, "Node"),
        (scheduled("False"), {}, "Unschedulable"),
        (scheduled() | waiting("ContainerCreating"), {}, "Node"),
        (scheduled(), {"volumes": [{"name": "run", "emptyDir": {}}]}, "Node"),
        (scheduled(), {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}]}, "Volume"),
        (scheduled(sandbox="True") | waiting("ContainerCreating"), {}, "Image"),
        (scheduled(sandbox="True") | waiting("ImagePullBackOff"), {}, "Image"),
        (scheduled() | waiting("ErrImagePull"), {}, "Image"),
        (scheduled(sandbox="True", initContainerStatuses=init("prepare")), {}, ""),
        (scheduled(sandbox="True", initContainerStatuses=init("beside")), {}, "Image"),
        (scheduled(sandbox="True", phase="Running"), {}, ""),
    ],
)
def test_a_pod_that_has_not_started_has_its_blocker(
    status: dict[str, Any], of_spec: dict[str, Any], blocker: str
) -> None:
    pod = pod_seen(owner="u", **({"phase": "Pending"} | status))
    beside = [{"name": "prepare"}, {"name": "beside", "restartPolicy": "Always"}]
    pod.spec = read(V1PodSpec, {"nodeName": "n1", "initContainers": beside} | of_spec)
    view = view_of(pod)
    assert view is not None
    assert view.pending_reason == blocker
