"""Any resource amount in any pod counts, and affects no other object."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, node_seen, pod_seen, read

from muster.api import spec
from muster.engine import Engine
from muster.kube.convert import parse_resources
from muster.kube.objects import RawCustomObject, V1Pod, V1PodSpec
from muster.model import MAX_AMOUNT, Admit, Resources
from muster.workload.observed import ObservedState
from muster_operator.cache.pod_requests import effective_request
from muster_operator.dry_run import compare_pod

SIZES = ("5E", "7Ei", "9223372036854775807", "1e40", "1E", "3", "0", "500m", "1n", ".5", "-1", "much", "", "1e1000")


def asking(name: str, *requests: str, version: int = 1, **of_spec: Any) -> V1Pod:
    """An unmanaged pod with so many containers on node n1."""
    pod = pod_seen(name, version)
    containers = [{"name": f"c{i}", "resources": {"requests": {"memory": one}}} for i, one in enumerate(requests)]
    pod.spec = read(V1PodSpec, {"containers": containers, "nodeName": "n1", **of_spec})
    return pod


def unmanaged(observed: ObservedState) -> int:
    return observed.nodes[0].unmanaged_usage.get("memory")


@pytest.mark.parametrize("size", ["5E", "9223372036854775807", "1e40"])
def test_a_request_beyond_the_maximum_counts_as_the_maximum(size: str) -> None:
    assert effective_request(asking("a", size).spec).get("memory") == MAX_AMOUNT
    assert parse_resources({"memory": size}) == Resources.of({"memory": MAX_AMOUNT})


@given(
    st.lists(st.sampled_from(SIZES), max_size=4),
    st.lists(st.sampled_from(SIZES), max_size=2),
    st.sampled_from(SIZES),
    st.sampled_from(SIZES),
)
def test_every_request_can_be_counted(main: list[str], first: list[str], overhead: str, whole: str) -> None:
    init = [{"resources": {"limits": {"memory": one}}, "restartPolicy": "Always"} for one in first]
    fields: dict[str, Any] = {"initContainers": init, "overhead": {"memory": overhead}}
    for of_spec in (fields, fields | {"resources": {"limits": {"memory": whole}}}):
        pod = asking("a", *main, **of_spec)
        requested = effective_request(pod.spec)
        assert requested.get("pods") == 1
        assert all(0 <= amount <= MAX_AMOUNT for _, amount in requested)


def test_pods_with_huge_requests_fill_their_node_and_free_it_one_by_one() -> None:
    cache, _ = new_cache()
    node = node_seen()
    node.status.allocatable["memory"] = "64Gi"
    cache.nodes.on_upsert(node)
    for version, name in enumerate(("a", "b", "c"), 1):
        cache.pods.on_upsert(asking(name, "4E", version=version))
    assert unmanaged(cache.observe()) == MAX_AMOUNT
    cache.pods.on_delete(asking("a", "4E", version=4))
    assert unmanaged(cache.observe()) == MAX_AMOUNT
    cache.pods.on_delete(asking("b", "4E", version=5))
    assert unmanaged(cache.observe()) == 4 * 10**18
    cache.pods.on_delete(asking("c", "4E", version=6))
    assert unmanaged(cache.observe()) == 0


def test_jobs_are_placed_on_other_nodes_than_the_full_one() -> None:
    cache, _ = new_cache()
    for name in ("n1", "n2"):
        node = node_seen(name)
        node.status.allocatable["memory"] = "64Gi"
        cache.nodes.on_upsert(node)
    for version, name in enumerate(("a", "b", "c"), 1):
        cache.pods.on_upsert(asking(name, "4E", version=version))
    wanted = {"namespaceSelector": {}, "resources": [{"flavor": "any", "guaranteed": {"nvidia.com/gpu": "16"}}]}
    cache.queues.on_upsert(
        read(RawCustomObject, {"metadata": {"name": "research", "resourceVersion": "1"}, "spec": wanted})
    )
    cache.flavors.on_upsert(read(RawCustomObject, {"metadata": {"name": "any", "resourceVersion": "1"}}))
    cache.jobs.on_upsert(read(RawCustomObject, asks_for_memory(job_document())))
    round_ = Engine().reconcile(cache.observe())
    (admitted,) = [one for one in round_.decisions if isinstance(one, Admit)]
    assert [part.nodes for part in admitted.placement] == [(("n2", 2),)]


def asks_for_memory(job: dict[str, Any]) -> dict[str, Any]:
    job["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Gi"
    return job


def test_a_pod_defaulted_beyond_the_maximum_is_rejected_with_its_amount() -> None:
    written = spec.PodSpec.model_validate({"containers": [{}]})
    side = {"name": "side", "resources": {"requests": {"memory": "4E"}}}
    result = compare_pod(written, {"containers": [{"name": "main"}, {**side}, {**side, "name": "b"}]})
    assert result.rejection == (
        "with the defaults of the API server, one pod requests memory 8E, more than the supported maximum"
    )
