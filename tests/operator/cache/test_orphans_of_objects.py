"""Pods of objects of other kinds that are gone: which are charged to the queue, and which a user has made up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import node_seen, read, template

from muster.api.spec import NodePods, QueueingStatus, RolePlacementStatus
from muster.kinds.suspended.table import ATTEMPT_LABEL, JOB_SET, OBJECT_ANNOTATION
from muster.kube.objects import RawCustomObject, RawQueuedObject, V1Pod
from muster.state import snapshot_of
from muster.workload import transitions
from muster.workload.placement import from_status
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.runners.create_pods.pod_owner import pod_owner

PLACEMENT = [RolePlacementStatus(role="workers", flavor="f", nodes=[NodePods(node="n1", indexes="0-1")])]


def job_set(version: int) -> RawQueuedObject:
    meta = {"name": "a", "namespace": "team", "uid": "uid-a", "labels": {"muster.dev/queue": "q"}}
    job = {"spec": {"parallelism": 2, "completions": 2, "template": template()}}
    wanted = {"suspend": False, "replicatedJobs": [{"name": "workers", "replicas": 1, "template": job}]}
    return read(RawQueuedObject, {"metadata": {**meta, "resourceVersion": str(version)}, "spec": wanted})


def pod(
    name: str, gpus: int = 1, node: str = "n1", attempt: int = 0, role: str = "workers", *, bound: bool = True
) -> V1Pod:
    meta: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "10"}
    meta |= {"labels": {ATTEMPT_LABEL: str(attempt)}, "annotations": {OBJECT_ANNOTATION: f"uid-a/{role}/a"}}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    pinned = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    resources = {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"containers": [{"name": "main", "resources": resources}], "affinity": pinned}
    spec |= {"nodeName": node} if bound else {}
    return read(V1Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Running" if bound else "Pending"}})


def deleted_job_set(*pods: V1Pod, admitted: bool = True) -> ClusterCache:
    """A JobSet of two pods on n1 that was deleted, and these pods."""
    cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 1000.0, kinds=[JOB_SET])
    for number, name in enumerate(("n1", "n2"), 1):
        cache.nodes.on_upsert(node_seen(name, number))
    quota = {"namespaceSelector": {}, "resources": [{"flavor": "f"}]}
    cache.queues.on_upsert(read(RawCustomObject, {"metadata": {"name": "q", "resourceVersion": "3"}, "spec": quota}))
    cache.flavors.on_upsert(read(RawCustomObject, {"metadata": {"name": "f", "resourceVersion": "4"}, "spec": {}}))
    cache.objects.handlers[0].on_upsert(job_set(5))
    status = QueueingStatus()
    if admitted:
        status = transitions.admit(status, from_status(PLACEMENT), 900.0)
    cache.objects.on_status_written("uid-a", status, 6, "q")
    for one in pods:
        cache.pods.on_upsert(one)
    cache.observe()
    cache.objects.handlers[0].on_delete(job_set(7))
    return cache


def charged_gpus(cache: ClusterCache) -> int:
    running = snapshot_of(cache.observe()).snapshot.running
    requests = {(gang.gang.uid, role.name): role.request for gang in running for role in gang.gang.roles}
    return sum(
        part.replicas * requests[gang.gang.uid, part.role].get("nvidia.com/gpu")
        for gang in running
        for part in gang.placement
    )


def test_pods_of_its_placement_are_charged_until_they_have_ended() -> None:
    cache = deleted_job_set(pod("a-0"), pod("a-1"))
    assert charged_gpus(cache) == 2
    cache.pods.on_delete(pod("a-0"))
    assert charged_gpus(cache) == 1


@pytest.mark.parametrize(
    "forged",
    [
        pod("x", 1000, bound=False),
        pod("x", role="other"),
        pod("x", node="n2"),
        pod("x", attempt=3),
    ],
    ids=["not bound", "another role", "another node", "another attempt"],
)
def test_a_pod_that_is_not_of_its_placement_is_charged_to_no_queue(forged: V1Pod) -> None:
    """Any user who may create pods can write the annotation that names an object."""
    assert charged_gpus(deleted_job_set(forged)) == 0


def test_more_pods_than_its_placement_has_on_a_node_are_not_charged() -> None:
    assert charged_gpus(deleted_job_set(*(pod(f"a-{number}") for number in range(6)))) == 2


def test_of_an_object_that_was_not_admitted_no_pod_is_charged() -> None:
    assert charged_gpus(deleted_job_set(pod("a-0"), admitted=False)) == 0
