"""From cached nodes, pods and queues to the ObservedState."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.caches import new_cache, relist
from tests.operator.objects import job_seen, name_of, node_seen, pod_seen, read

from muster.cluster import ObservedState
from muster.kube.objects import RawCustomObject, V1Namespace, V1Pod, V1PodSpec, V1ResourceRequirements
from muster.model import NodeTaint, Resources
from muster_operator.cache.cached_pod import created_pod, pod_view
from muster_operator.cache.pod_requests import effective_request


def foreign(world: ObservedState, node: str = "n1") -> dict[str, int]:
    return dict(next(view for view in world.nodes if view.name == node).unmanaged_usage.items)


# ---- nodes


def test_a_kubelet_heartbeat_is_no_change_and_the_node_stays_the_same_object() -> None:
    seen, changes = new_cache()
    seen.nodes.on_upsert(node_seen(version=1))
    before = seen.observe().nodes
    assert changes.during(lambda: seen.nodes.on_upsert(node_seen(version=2))) == 0
    assert seen.observe().nodes is before


def test_only_the_node_that_changed_is_another_object() -> None:
    seen, _ = new_cache()
    for name in ("n2", "n1"):
        seen.nodes.on_upsert(node_seen(name))
    before = seen.observe().nodes
    seen.nodes.on_upsert(node_seen("n1", 2, unschedulable=True))
    after = seen.observe().nodes
    assert [view.name for view in after] == ["n1", "n2"]
    assert after[0].cordoned
    assert after[1] is before[1]


@pytest.mark.parametrize(("ready", "since"), [("True", None), ("False", None), ("Unknown", 1795255200.0)])
def test_a_node_is_unreachable_only_while_its_ready_condition_is_unknown(ready: str, since: float | None) -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen(ready=ready))
    (view,) = seen.observe().nodes
    assert (view.ready, view.not_ready_since) == (ready == "True", since)


def test_taints_of_the_control_plane_are_dropped_and_others_kept() -> None:
    seen, _ = new_cache()
    own = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    stays = {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}
    seen.nodes.on_upsert(node_seen(taints=[own, stays]))
    seen.nodes.on_upsert(node_seen("n2", taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]))
    first, second = seen.observe().nodes
    assert (first.taints, first.cordoned) == (
        (NodeTaint("node.kubernetes.io/out-of-service", "x", "NoExecute"),),
        False,
    )
    assert (second.taints, second.cordoned) == ((), True)


def test_a_node_without_conditions_or_with_an_invalid_amount_is_still_a_node() -> None:
    seen, _ = new_cache()
    node = node_seen()
    node.status.conditions = []
    node.status.allocatable["odd"] = "many"
    seen.nodes.on_upsert(node)
    (view,) = seen.observe().nodes
    assert not view.ready
    assert view.allocatable == Resources.of({"nvidia.com/gpu": 8, "pods": 100})


# ---- unmanaged pods


def test_unmanaged_pods_count_as_usage_until_they_end_or_are_deleted() -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    seen.pods.on_upsert(pod_seen("a"))
    seen.pods.on_upsert(pod_seen("b"))
    assert foreign(seen.observe()) == {"nvidia.com/gpu": 2, "pods": 2}
    seen.pods.on_upsert(pod_seen("a", 2, phase="Succeeded"))
    assert foreign(seen.observe()) == {"nvidia.com/gpu": 1, "pods": 1}
    seen.pods.on_delete(pod_seen("b", 3))
    assert foreign(seen.observe()) == {}


def test_an_unmanaged_pod_counts_once_bound_even_before_its_node_is_known() -> None:
    seen, _ = new_cache()
    seen.pods.on_upsert(pod_seen("a", node="", phase="Pending"))
    seen.pods.on_upsert(pod_seen("a", 2, phase="Pending"))
    seen.nodes.on_upsert(node_seen())
    assert foreign(seen.observe()) == {"nvidia.com/gpu": 1, "pods": 1}


def test_a_pod_of_a_job_is_unmanaged_while_the_job_is_not_visible() -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    seen.pods.on_upsert(pod_seen(owner="uid-llama"))
    assert foreign(seen.observe()) == {"nvidia.com/gpu": 1, "pods": 1}
    seen.jobs.on_upsert(job_seen())
    world = seen.observe()
    assert foreign(world) == {}
    assert [pod.name for pod in world.pods["uid-llama"]] == [name_of()]
    seen.jobs.on_delete(job_seen(version=2))
    world = seen.observe()
    assert foreign(world) == {"nvidia.com/gpu": 1, "pods": 1}
    assert world.pods == {}


def test_a_new_list_corrects_everything_that_was_missed() -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen("gone"))
    seen.pods.on_upsert(pod_seen(owner="uid-llama"))
    relist(seen.pods, [pod_seen("new", 7)], 9)
    world = seen.observe()
    assert foreign(world) == {"nvidia.com/gpu": 1, "pods": 1}
    assert world.pods == {}


def test_usage_of_a_pod_includes_sidecars_overhead_and_pod_level_requests() -> None:
    side = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    main = {"name": "m", "resources": {"requests": {"cpu": "500m"}}}
    plain = read(V1PodSpec, {"containers": [main], "initContainers": [side], "overhead": {"cpu": "10m"}})
    assert effective_request(plain) == Resources.of({"cpu": 1510, "pods": 1})
    whole = {"containers": [main], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "10m"}}
    assert effective_request(read(V1PodSpec, whole)) == Resources.of({"cpu": 4010, "pods": 1})


def resized(
    asks: str, allocated: str, runs_with: str, *conditions: dict[str, Any], version: int = 1, **more: Any
) -> V1Pod:
    """A pod with one container on n1 whose CPU is resized in place."""
    status = {"name": "main", "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": runs_with}}}
    pod = pod_seen("p", version, containerStatuses=[status], conditions=list(conditions), **more)
    pod.spec.containers[0].resources = read(V1ResourceRequirements, {"requests": {"cpu": asks}})
    return pod


def test_a_resized_pod_uses_the_maximum_of_requested_allocated_and_actual() -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    sizes = (("4", "1", "1"), ("1", "4", "1"), ("1", "1", "4"), ("2", "2", "2"))
    for version, (asks, allocated, runs_with) in enumerate(sizes, 1):
        seen.pods.on_upsert(resized(asks, allocated, runs_with, version=version))
        assert foreign(seen.observe())["cpu"] == 1000 * max(int(asks), int(allocated), int(runs_with))


def test_an_infeasible_resize_does_not_count() -> None:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    seen.pods.on_upsert(resized("4000", "2", "1", pending))
    assert foreign(seen.observe())["cpu"] == 2000


def test_a_pod_level_resize_uses_the_maximum_of_the_three() -> None:
    pod = resized("1", "1", "1")
    pod.spec.resources = read(V1ResourceRequirements, {"requests": {"cpu": "8"}})
    pod.status.resources = read(V1ResourceRequirements, {"requests": {"cpu": "16"}})
    assert effective_request(pod.spec, pod.status).get("cpu") == 16_000
    pod.status.allocated_resources = {"cpu": "32"}
    assert effective_request(pod.spec, pod.status).get("cpu") == 32_000


# ---- pods of jobs


def test_our_resized_pod_has_its_present_request() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    for version, cores in ((5, "1"), (6, "64")):
        pod = pod_seen("", version, owner="uid-llama")
        pod.spec.containers[0].resources = read(V1ResourceRequirements, {"requests": {"cpu": cores}})
        seen.pods.on_upsert(pod)
        (view,) = seen.observe().pods["uid-llama"]
        assert view.request.get("cpu") == int(cores) * 1000


def test_a_pod_we_created_counts_at_once_and_its_event_changes_nothing() -> None:
    seen, changes = new_cache()
    seen.jobs.on_upsert(job_seen())
    made = pod_seen("", 5, owner="uid-llama")
    seen.pods.on_created(created_pod(made.metadata, "uid-llama", "n1", effective_request(made.spec)))
    before = seen.observe().pods["uid-llama"]
    assert (before[0].phase, before[0].node) == ("Pending", "n1")
    event = pod_seen("", 6, owner="uid-llama", phase="Pending")  # bound meanwhile to the node that it is pinned to
    assert changes.during(lambda: seen.pods.on_upsert(event)) == 0
    assert seen.observe().pods["uid-llama"] is before


def test_a_pod_we_created_with_a_scheduling_gate_is_unschedulable_once_its_event_arrives() -> None:
    seen, changes = new_cache()
    seen.jobs.on_upsert(job_seen())
    gated = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    made = pod_seen("", 5, node="", owner="uid-llama", phase="Pending", conditions=gated)
    seen.pods.on_created(created_pod(made.metadata, "uid-llama", "n1", effective_request(made.spec)))
    assert seen.observe().pods["uid-llama"][0].pending_reason != "Unschedulable"
    assert changes.during(lambda: seen.pods.on_upsert(made)) > 0
    assert seen.observe().pods["uid-llama"][0].pending_reason == "Unschedulable"
    assert changes.during(lambda: seen.pods.on_upsert(made)) == 0


def test_a_pod_of_a_job_is_unbound_until_it_is_on_a_node_or_goes() -> None:
    seen, _ = new_cache()
    seen.pods.on_upsert(pod_seen("foreign", 1, node=""))
    assert not seen.pods.has_unbound()
    for index in (0, 1):
        seen.pods.on_upsert(pod_seen(version=2 + index, node="", owner="uid-llama", seat=(index, 0)))
    assert not seen.pods.has_unbound(), "nobody knows yet that they are a job's"
    seen.jobs.on_upsert(job_seen())
    assert seen.pods.has_unbound()
    seen.pods.on_upsert(pod_seen(version=4, owner="uid-llama"))
    assert seen.pods.has_unbound()
    seen.pods.on_delete(pod_seen(version=5, node="", owner="uid-llama", seat=(1, 0)))
    assert not seen.pods.has_unbound()
    assert seen.pods.bound_count == 2


def test_our_pod_has_the_request_of_the_api_server_not_of_its_template() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    made = pod_seen("", 5, owner="uid-llama")
    seen.pods.on_created(created_pod(made.metadata, "uid-llama", "n1", effective_request(made.spec)))
    side = read(V1PodSpec, {"containers": [{"name": "side", "resources": {"requests": {"cpu": "250m"}}}]})
    made.metadata.resource_version = "6"
    made.spec.containers.extend(side.containers)
    made.spec.overhead["cpu"] = "10m"
    before = seen.observe().pods["uid-llama"][0].request
    seen.pods.on_upsert(made)
    after = seen.observe().pods["uid-llama"][0].request
    assert after == before.plus(Resources.of({"cpu": 260}))


def test_a_pod_we_deleted_is_terminating_at_once() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
    pod = seen.pods.get("uid-llama", name_of())
    assert pod is not None
    seen.pods.on_delete_requested(pod)
    assert seen.observe().pods["uid-llama"][0].deleting


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_deleted_after_its_end_stays_visible_until_its_job_is_decided_on(phase: str) -> None:
    seen, changes = new_cache()
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
    last = pod_seen("", 6, owner="uid-llama", phase=phase, containerStatuses=[ended(3)])
    seen.pods.on_upsert(last)
    last.metadata.resource_version, last.metadata.deletion_timestamp = "7", "2026-11-21T10:00:07Z"
    seen.pods.on_upsert(last)  # sent by the API server before the deletion
    seen.pods.on_delete(last)
    (view,) = seen.observe().pods["uid-llama"]
    assert (view.phase, view.exit_code, view.deleting) == (phase, 3, False)
    assert changes.during(lambda: seen.pods.remove_tombstone("uid-llama", view.name)) == 1
    assert seen.observe().pods == {}


def test_an_ended_pod_missing_from_a_new_list_stays_visible_as_it_ended() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen("", 5, owner="uid-llama", phase="Succeeded"))
    seen.pods.on_upsert(pod_seen("", 6, owner="uid-llama", seat=(1, 0)))
    relist(seen.pods, [], 9)
    assert [view.name for view in seen.observe().pods["uid-llama"]] == [name_of()]


def test_a_pod_deleted_before_its_end_is_gone_once_removed() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    for index in (0, 1):
        seen.pods.on_upsert(pod_seen("", 5 + index, owner="uid-llama", seat=(index, 0)))
    ours = seen.pods.get("uid-llama", name_of())
    assert ours is not None
    seen.pods.on_delete_requested(ours)
    by_us, by_others = (pod_seen("", 8 + i, owner="uid-llama", seat=(i, 0), phase="Succeeded") for i in (0, 1))
    for pod in (by_us, by_others):
        pod.metadata.deletion_timestamp = "2026-11-21T10:00:00Z"
        seen.pods.on_upsert(pod)
        seen.pods.on_delete(pod)
    assert seen.observe().pods == {}


def test_a_pod_that_ends_while_we_delete_it_is_visible_as_it_ended() -> None:
    """The answer to our delete arrives before or after the event of its end."""
    for told_first in (False, True):
        seen, _ = new_cache()
        seen.jobs.on_upsert(job_seen())
        seen.pods.on_upsert(pod_seen("", 5, owner="uid-llama"))
        running = seen.pods.get("uid-llama", name_of())
        assert running is not None
        end = pod_seen("", 6, owner="uid-llama", phase="Succeeded")
        steps = [
            lambda seen=seen, running=running: seen.pods.on_delete_requested(running),
            lambda seen=seen, end=end: seen.pods.on_upsert(end),
        ]
        for step in steps if told_first else reversed(steps):
            step()
        end.metadata.resource_version, end.metadata.deletion_timestamp = "7", "2026-11-21T10:00:07Z"
        seen.pods.on_upsert(end)
        seen.pods.on_delete(end)
        assert [(view.phase, view.deleting) for view in seen.observe().pods["uid-llama"]] == [("Succeeded", False)]


def test_an_ended_pod_that_we_delete_is_gone_whenever_the_answer_arrives() -> None:
    for answered_first in (False, True):
        seen, _ = new_cache()
        seen.jobs.on_upsert(job_seen())
        end = pod_seen("", 5, owner="uid-llama", phase="Failed")
        seen.pods.on_upsert(end)
        known = seen.pods.get("uid-llama", name_of())
        assert known is not None
        steps = [
            lambda seen=seen, known=known: seen.pods.on_delete_requested(known),
            lambda seen=seen, end=end: seen.pods.on_delete(end),
        ]
        for step in steps if answered_first else reversed(steps):
            step()
        assert seen.observe().pods == {}


def test_an_event_older_than_our_delete_does_not_revive_a_pod() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen("", 5, owner="uid-llama", phase="Pending"))
    known = seen.pods.get("uid-llama", name_of())
    assert known is not None
    seen.pods.on_delete_requested(known)
    seen.pods.on_upsert(pod_seen("", 6, owner="uid-llama"))
    (view,) = seen.observe().pods["uid-llama"]
    assert (view.phase, view.deleting) == ("Running", True)


def test_a_pod_that_reappears_is_visible_once() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    first = pod_seen("", 5, owner="uid-llama", phase="Succeeded")
    seen.pods.on_upsert(first)
    seen.pods.on_delete(first)
    seen.pods.on_upsert(pod_seen("", 7, owner="uid-llama"))
    assert [view.phase for view in seen.observe().pods["uid-llama"]] == ["Running"]


def test_tombstones_of_an_attempt_are_dropped_with_the_next_one_and_with_the_job() -> None:
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen())
    for attempt in (0, 1):
        pod = pod_seen("", 5 + attempt, owner="uid-llama", seat=(0, attempt), phase="Failed")
        seen.pods.on_upsert(pod)
        seen.pods.on_delete(pod)
    assert [view.attempt for view in seen.observe().pods["uid-llama"]] == [1]
    seen.jobs.on_delete(job_seen(version=10))
    seen.jobs.on_upsert(job_seen(version=11))
    assert seen.observe().pods == {}


def ended(code: int, name: str = "main", at: str = "2026-11-21T10:00:05Z", **more: str) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at, **more}}}


def test_a_failed_pod_has_code_time_and_message_of_its_main_container() -> None:
    pod = pod_seen(
        owner="u",
        phase="Failed",
        containerStatuses=[ended(1, "helper"), ended(42, reason="Error", message="loss is nan")],
    )
    pod.spec.containers.append(type(pod.spec.containers[0])(name="helper"))
    view = pod_view(pod, "u")
    assert view is not None
    assert (view.exit_code, view.reason, view.log_tail) == (42, "Error", "loss is nan")
    assert view.finished_at == 1795255205.0


def test_a_pod_whose_main_container_succeeded_fails_by_the_first_failed_one() -> None:
    late, early = ended(3, "late", "2026-11-21T10:00:09Z"), ended(2, "early", "2026-11-21T10:00:07Z")
    view = pod_view(pod_seen(owner="u", phase="Failed", containerStatuses=[late, early, ended(0)]), "u")
    assert view is not None
    assert view.exit_code == 2


def test_a_disruption_takes_precedence_over_the_container_reason() -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True"}]
    pod = pod_seen(owner="u", phase="Failed", conditions=conditions, containerStatuses=[ended(143, reason="Error")])
    view = pod_view(pod, "u")
    assert view is not None
    assert view.reason == "DisruptionTarget"


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
    view = pod_view(pod, "u")
    assert view is not None
    assert view.pending_reason == blocker


def test_a_pod_without_its_labels_is_unmanaged() -> None:
    pod = pod_seen(owner="u")
    pod.metadata.labels = {}
    assert pod_view(pod, "u") is None
    seen, _ = new_cache()
    seen.jobs.on_upsert(job_seen("x"))
    seen.nodes.on_upsert(node_seen())
    seen.pods.on_upsert(read(V1Pod, {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"nodeName": "n1"}}))
    assert foreign(seen.observe()) == {"pods": 1}


# ---- the rest


def test_queues_namespaces_and_their_labels_are_cached() -> None:
    seen, _ = new_cache()
    queue = {"metadata": {"name": "q", "uid": "u", "resourceVersion": "3", "finalizers": ["f"]}, "spec": {"weight": 2}}
    seen.queues.on_upsert(read(RawCustomObject, queue))
    seen.namespaces.on_upsert(read(V1Namespace, {"metadata": {"name": "team", "labels": {"org": "x"}}}))
    world = seen.observe()
    assert [(queue.metadata.name, queue.spec.weight) for queue in world.queues] == [("q", 2.0)]
    assert world.queues[0].metadata.finalizers == ["f"]
    assert world.namespaces == {"team": {"org": "x"}}
