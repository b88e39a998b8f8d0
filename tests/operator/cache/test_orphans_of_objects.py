"""Pods of objects of other kinds that are gone: which are charged to the queue, and which a user has made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import node_seen, read, template

from muster.api.spec import NodePods, QueueingStatus, RolePlacementStatus
from muster.kinds.suspended.table import ATTEMPT_LABEL, BATCH_JOB, JOB_SET, OBJECT_ANNOTATION, KindRow
from muster.kube.objects import (
    RawCustomObject,
    RawQueuedObject,
    V1Namespace,
    V1NodeSelectorRequirement,
    V1Pod,
    V1PodAnnotations,
)
from muster.state import snapshot_of
from muster.workload import transitions
from muster.workload.placement import from_status
from muster_operator.cache.cached_pod import cached_pod
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.object_pods import object_pod_owner
from muster_operator.runners.create_pods.pod_owner import pod_owner
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.shared_key import SharedKey

API: Any = None
SIGNER = PodSigner(SharedKey(API, "muster-system", "key", b"k" * 32))


def document(row: KindRow, version: int, **of_spec: Any) -> RawQueuedObject:
    """A JobSet or Job of two pods."""
    meta = {"name": "a", "namespace": "team", "uid": "uid-a", "labels": {"muster.dev/queue": "q"}}
    wanted: dict[str, Any] = {"parallelism": 2, "completions": 2, "template": template()}
    if row is JOB_SET:
        wanted = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": wanted}}]}
    spec = {"suspend": False, **wanted, **of_spec}
    return read(RawQueuedObject, {"metadata": {**meta, "resourceVersion": str(version)}, "spec": spec})


def pod(
    name: str, gpus: int = 1, node: str = "n1", attempt: int = 0, role: str = "workers", *, bound: bool = True
) -> V1Pod:
    """A pod of the JobSet that is pinned to a node, without a signature."""
    meta: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "10"}
    annotations = {OBJECT_ANNOTATION: f"uid-a/{role}/a", "muster.dev/queue": "q"}
    meta |= {"labels": {ATTEMPT_LABEL: str(attempt)}, "annotations": annotations}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    pinned = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    resources = {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"containers": [{"name": "main", "resources": resources}], "affinity": pinned}
    spec |= {"nodeName": node} if bound else {}
    return read(V1Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Running" if bound else "Pending"}})


def released(one: V1Pod, like: V1Pod | None = None) -> V1Pod:
    """The pod, with the signature that it, or another one, got when it was released."""
    of = one if like is None else like
    known = cached_pod(of, None, object_pod_owner([JOB_SET], of.metadata))
    assert known.view is not None
    annotations = one.metadata.annotations
    text = SIGNER.released(known, known.view.node)
    one.metadata.annotations = V1PodAnnotations(annotations.queue, text, annotations.object)
    return one


def pod_of_job(name: str, node: str = "n1", *, bound: bool = True) -> V1Pod:
    """A pod of the Job, pinned by its template."""
    one = pod(name, node=node, bound=bound)
    one.metadata.annotations = V1PodAnnotations("q")
    controller = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a", "controller": True}
    owner = read(V1Pod, {"metadata": {"ownerReferences": [controller]}, "spec": {}, "status": {}})
    one.metadata.owner_references += owner.metadata.owner_references
    return one


def cache_of(*pods: V1Pod, row: KindRow = JOB_SET, status: QueueingStatus = QueueingStatus()) -> ClusterCache:  # noqa: B008 - it is a value
    """An object of this kind with this status, and these pods."""
    cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 1000.0, kinds=[row], signatures=SIGNER)
    for number, name in enumerate(("n1", "n2"), 1):
        cache.nodes.on_upsert(node_seen(name, number))
    quota = {"namespaceSelector": {}, "resources": [{"flavor": "f"}]}
    cache.queues.on_upsert(read(RawCustomObject, {"metadata": {"name": "q", "resourceVersion": "3"}, "spec": quota}))
    cache.flavors.on_upsert(read(RawCustomObject, {"metadata": {"name": "f", "resourceVersion": "4"}, "spec": {}}))
    cache.namespaces.on_upsert(
        read(V1Namespace, {"metadata": {"name": "team", "labels": {"muster.dev/queueing": "enabled"}}})
    )
    cache.objects.handlers[0].on_upsert(document(row, 5))
    cache.objects.on_status_written("uid-a", status, 6, "q")
    for one in pods:
        cache.pods.on_upsert(one)
    cache.observe()
    return cache


def admitted(role: str = "workers") -> QueueingStatus:
    """With both pods on n1."""
    place = RolePlacementStatus(role=role, flavor="f", nodes=[NodePods(node="n1", indexes="0-1")])
    return transitions.admit(QueueingStatus(), from_status([place]), 900.0)


def deleted(*pods: V1Pod, row: KindRow = JOB_SET, status: QueueingStatus | None = None) -> ClusterCache:
    """An object of two pods on n1 that was deleted, and these pods."""
    if status is None:
        status = admitted("workers" if row is JOB_SET else "pods")
    cache = cache_of(*pods, row=row, status=status)
    cache.objects.handlers[0].on_delete(document(row, 7))
    return cache


def charged_gpus(cache: ClusterCache) -> int:
    running = snapshot_of(cache.observe()).snapshot.running
    requests = {(gang.gang.uid, role.name): role.request for gang in running for role in gang.gang.roles}
    return sum(
        part.replicas * requests[gang.gang.uid, part.role].get("nvidia.com/gpu")
        for gang in running
        for part in gang.placement
    )


def test_its_pods_are_charged_from_their_release_until_they_have_ended() -> None:
    """One that is not bound yet will be: its quota must not be given to another job."""
    cache = deleted(released(pod("a-0")), released(pod("a-1", bound=False)))
    assert charged_gpus(cache) == 2
    cache.pods.on_delete(pod("a-0"))
    assert charged_gpus(cache) == 1


def test_a_pod_whose_template_excludes_a_node_by_name_is_charged_before_it_is_bound_too() -> None:
    one = pod("a-0", bound=False)
    (term,) = one.spec.affinity.node_affinity.required.node_selector_terms  # type: ignore[union-attr]
    term.match_fields.insert(0, V1NodeSelectorRequirement("metadata.name", "NotIn", ["n2"]))
    known = cached_pod(pod("a-0"), None, object_pod_owner([JOB_SET], one.metadata))
    one.metadata.annotations = V1PodAnnotations("q", SIGNER.released(known, "n1"), one.metadata.annotations.object)
    assert charged_gpus(deleted(one)) == 1


FORGED = {
    "not released": lambda: pod("x"),
    "not released and not bound": lambda: pod("x", bound=False),
    "released to another node": lambda: released(pod("x", node="n2"), pod("x")),
    "the signature of another pod": lambda: released(pod("x"), pod("a-0")),
    "the signature of another role": lambda: released(pod("x"), pod("x", attempt=0, role="other", node="n2")),
    "another attempt": lambda: released(pod("x", attempt=3)),
}


@pytest.mark.parametrize("make", FORGED.values(), ids=FORGED)
def test_a_pod_that_a_user_has_made_up_is_charged_to_no_queue(make: Callable[[], V1Pod]) -> None:
    """Any user who may create pods can write the annotation that names an object."""
    assert charged_gpus(deleted(make())) == 0


@pytest.mark.parametrize("name", [name for name in FORGED if name != "another attempt"])
@pytest.mark.parametrize("attempt", [0, 1], ids=["never admitted", "requeued"])
def test_a_pod_that_a_user_has_made_up_of_an_object_that_waits_is_charged_to_no_queue(name: str, attempt: int) -> None:
    assert charged_gpus(cache_of(FORGED[name](), status=QueueingStatus(attempt=attempt))) == 0


def test_pods_of_an_object_that_waits_again_are_charged_until_they_have_ended() -> None:
    cache = cache_of(released(pod("a-0")), released(pod("a-1", bound=False)), status=QueueingStatus(attempt=1))
    assert charged_gpus(cache) == 2


def test_a_pod_that_grows_after_its_release_is_charged_what_was_admitted() -> None:
    assert charged_gpus(deleted(released(pod("a-0", gpus=6), pod("a-0")))) == 1


def test_of_an_object_that_was_not_admitted_no_pod_is_charged() -> None:
    assert charged_gpus(deleted(pod("a-0"), status=QueueingStatus())) == 0
    assert charged_gpus(cache_of(pod_of_job("a-0"), row=BATCH_JOB)) == 0


def test_of_a_job_whose_template_pins_its_pods_those_that_are_bound_to_its_places_are_charged() -> None:
    """Each is created by the Job's controller, and never written by Muster: none has a signature."""
    pods = (pod_of_job(f"a-{number}") for number in range(6))
    assert charged_gpus(deleted(*pods, row=BATCH_JOB)) == 2
    others = (pod_of_job("x", node="n2"), pod_of_job("y", bound=False))
    assert charged_gpus(deleted(*others, row=BATCH_JOB)) == 0
