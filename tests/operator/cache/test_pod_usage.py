"""What pods use of a node: unmanaged pods, effective requests, pods resized in place."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
from tests.operator.caches import new_cache, unmanaged_usage
from tests.operator.objects import job_seen, node_seen, pod_seen, read

from muster.kube.objects import V1Node, V1Pod, V1PodSpec, V1ResourceRequirements
from muster.model import Resources
from muster_operator.cache.cached_pod import created_pod
from muster_operator.cache.pod_requests import effective_request
from muster_operator.runners.create_pods.pod_owner import pod_owner


def test_unmanaged_pods_count_as_usage_until_they_end_or_are_deleted() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen())
    cache.pods.on_upsert(pod_seen("a"))
    cache.pods.on_upsert(pod_seen("b"))
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 2, "pods": 2}
    cache.pods.on_upsert(pod_seen("a", 2, phase="Succeeded"))
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 1, "pods": 1}
    cache.pods.on_delete(pod_seen("b", 3))
    assert unmanaged_usage(cache.observe()) == {}


def test_an_unmanaged_pod_counts_once_bound_even_before_its_node_is_known() -> None:
    cache, _ = new_cache()
    cache.pods.on_upsert(pod_seen("a", node="", phase="Pending"))
    cache.pods.on_upsert(pod_seen("a", 2, phase="Pending"))
    cache.nodes.on_upsert(node_seen())
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 1, "pods": 1}


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


def node_with_cores() -> V1Node:
    node = node_seen()
    node.status.allocatable = {"cpu": "64", **node.status.allocatable}
    return node


def test_a_resized_pod_uses_the_maximum_of_requested_allocated_and_actual() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_with_cores())
    sizes = (("4", "1", "1"), ("1", "4", "1"), ("1", "1", "4"), ("2", "2", "2"))
    for version, (asks, allocated, runs_with) in enumerate(sizes, 1):
        cache.pods.on_upsert(resized(asks, allocated, runs_with, version=version))
        assert unmanaged_usage(cache.observe())["cpu"] == 1000 * max(int(asks), int(allocated), int(runs_with))


def test_an_infeasible_resize_does_not_count() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_with_cores())
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    cache.pods.on_upsert(resized("4000", "2", "1", pending))
    assert unmanaged_usage(cache.observe())["cpu"] == 2000


def test_a_pod_level_resize_uses_the_maximum_of_the_three() -> None:
    pod = resized("1", "1", "1")
    pod.spec.resources = read(V1ResourceRequirements, {"requests": {"cpu": "8"}})
    pod.status.resources = read(V1ResourceRequirements, {"requests": {"cpu": "16"}})
    assert effective_request(pod.spec, pod.status).get("cpu") == 16_000
    pod.status.allocated_resources = {"cpu": "32"}
    assert effective_request(pod.spec, pod.status).get("cpu") == 32_000


@pytest.mark.parametrize(("requested", "allocated", "actual"), [("4", "1", "1"), ("1", "4", "1"), ("1", "1", "4")])
def test_a_resized_sidecar_uses_the_maximum_of_the_three(requested: str, allocated: str, actual: str) -> None:
    pod = with_init_container(requested, allocated, actual, restartPolicy="Always")
    assert effective_request(pod.spec, pod.status).get("cpu") == 2000 + 4000


def test_an_init_container_that_ends_uses_what_it_requests() -> None:
    """It cannot be resized while it runs, so kube-scheduler ignores its status."""
    pod = with_init_container("4", "8", "8")
    assert effective_request(pod.spec, pod.status).get("cpu") == 4000


def with_init_container(requested: str, allocated: str, actual: str, **fields: str) -> V1Pod:
    """A pod whose main container uses 2 CPUs, with an init container that has these requests and this status."""
    container = {"name": "init", "resources": {"requests": {"cpu": requested}}, **fields}
    status = {"name": "init", "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}}
    pod = resized("2", "2", "2", initContainerStatuses=[status])
    pod.spec.init_containers = read(V1PodSpec, {"containers": [], "initContainers": [container]}).init_containers
    return pod


def test_our_resized_pod_has_its_present_request() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    for version, cores in ((5, "1"), (6, "64")):
        pod = pod_seen("", version, owner="uid-llama")
        pod.spec.containers[0].resources = read(V1ResourceRequirements, {"requests": {"cpu": cores}})
        cache.pods.on_upsert(pod)
        (view,) = cache.observe().pods["uid-llama"]
        assert view.request.get("cpu") == int(cores) * 1000


def test_our_pod_has_the_request_of_the_api_server_not_of_its_template() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    made = pod_seen("", 5, owner="uid-llama")
    cache.pods.on_created(created_pod(made.metadata, pod_owner(made.metadata), "n1", effective_request(made.spec)))
    side = read(V1PodSpec, {"containers": [{"name": "side", "resources": {"requests": {"cpu": "250m"}}}]})
    made.metadata.resource_version = "6"
    made.spec.containers.extend(side.containers)
    made.spec.overhead["cpu"] = "10m"
    before = cache.observe().pods["uid-llama"][0].request
    cache.pods.on_upsert(made)
    after = cache.observe().pods["uid-llama"][0].request
    assert after == before.plus(Resources.of({"cpu": 260}))


@pytest.mark.parametrize("place", ["containers", "init_containers"])
@pytest.mark.parametrize("policy", [None, "Always"])
def test_the_request_of_a_pod_with_thousands_of_containers_takes_linear_time(place: str, policy: str | None) -> None:
    """A pod has at most 1.5 MiB. Any user who may create pods could stop the operator with one."""
    program = f"""
from muster.kube.objects import V1Container, V1PodSpec, V1ResourceRequirements
from muster_operator.cache.pod_requests import effective_request
one = [
    V1Container(f"c{{i}}", V1ResourceRequirements({{f"example.com/r{{i}}": "1"}}), {policy!r})
    for i in range(20_000)
]
assert len(effective_request(V1PodSpec({place}=one)).items) == 20_001
"""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # noqa: E731
    assert subprocess.run([sys.executable, "-c", program], preexec_fn=limit, check=False).returncode == 0


def test_of_what_pods_use_a_node_shows_the_resources_that_it_has() -> None:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen())
    many = Resources.of({f"example.com/r{number}": 1 for number in range(1000)} | {"nvidia.com/gpu": 2})
    for _ in range(3):
        cache.nodes.add_unmanaged_usage("n1", many)
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 6}
    for _ in range(3):
        cache.nodes.add_unmanaged_usage("n1", many.times(-1))
    assert unmanaged_usage(cache.observe()) == {}
