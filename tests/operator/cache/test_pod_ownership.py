"""Ownership of pods: any user may write any uid into an ownerReference; only namespace and name count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, job_seen, name_of, node_seen, pod_seen, read, template

from muster.api.spec import ROLE_LABEL
from muster.cluster import DeletePod, PodView
from muster.engine import CycleResult, Engine
from muster.kube.objects import RawCustomObject, V1Pod
from muster.model import Admit
from muster.workload.observed import ObservedState
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.pod_builder.job_objects import ATTEMPT_LABEL, INDEX_LABEL

UID = "uid-llama"
UNMANAGED = {"nvidia.com/gpu": 1, "pods": 1}


def unmanaged_on_node(observed: ObservedState) -> dict[str, int]:
    """Unmanaged usage of the node."""
    return dict(observed.nodes[0].unmanaged_usage.items)


def ours(observed: ObservedState) -> list[str]:
    pods: tuple[PodView, ...] = observed.pods.get(UID, ())
    return [pod.name for pod in pods]


def in_another_namespace() -> V1Pod:
    """A pod in another namespace that is otherwise identical to a pod of the job."""
    pod = pod_seen(owner=UID, slot=(0, 999))
    pod.metadata.namespace = "strangers"
    return pod


def of_another_name() -> V1Pod:
    return pod_seen("llama-trainer-0-fffff", owner=UID)


def labelled_with_another_attempt() -> V1Pod:
    pod = pod_seen(owner=UID)
    pod.metadata.labels[ATTEMPT_LABEL] = "999"
    return pod


def that_says_it_is_another_role() -> V1Pod:
    pod = pod_seen(owner=UID)
    pod.metadata.labels[ROLE_LABEL] = "worker"
    return pod


def below_zero() -> V1Pod:
    pod = pod_seen(name_of(UID, -1), owner=UID)
    pod.metadata.labels[INDEX_LABEL] = "-1"
    return pod


def of_another_job_of_that_uid() -> V1Pod:
    pod = pod_seen("other-trainer-0-" + name_of(UID)[-5:], owner=UID)
    pod.metadata.owner_references[0].name = "other"
    return pod


def of_two_owners() -> V1Pod:
    pod = pod_seen(owner=UID)
    pod.metadata.owner_references[0].controller = False
    return pod


STRANGERS = [
    in_another_namespace,
    of_another_name,
    labelled_with_another_attempt,
    that_says_it_is_another_role,
    below_zero,
    of_another_job_of_that_uid,
    of_two_owners,
]


@pytest.fixture
def cache() -> ClusterCache:
    cache, _ = new_cache()
    cache.nodes.on_upsert(node_seen())
    return cache


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("pods_first", [True, False], ids=["listed before the job", "listed after the job"])
def test_a_pod_that_only_claims_an_owner_is_unmanaged_usage(
    make: Callable[[], V1Pod], pods_first: bool, cache: ClusterCache
) -> None:
    pod = make()
    if pods_first:
        cache.pods.on_upsert(pod)
    cache.jobs.on_upsert(job_seen())
    if not pods_first:
        cache.pods.on_upsert(pod)
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([], UNMANAGED)
    assert cache.pods.get(UID, pod.metadata.name) is None
    assert cache.pods.lead_pod(UID, "trainer") is None
    assert not cache.pods.has_pod_in_phase(UID, ("Running",))
    cache.jobs.on_delete(job_seen(version=2))
    assert unmanaged_on_node(cache.observe()) == UNMANAGED
    pod.metadata.resource_version = "3"
    cache.pods.on_delete(pod)
    assert unmanaged_on_node(cache.observe()) == {}


def test_an_unmanaged_pod_of_the_same_name_does_not_affect_ours(
    cache: ClusterCache,
) -> None:
    cache.jobs.on_upsert(job_seen())
    mine, theirs = pod_seen(owner=UID), pod_seen(owner=UID)
    theirs.metadata.namespace, theirs.metadata.uid = "strangers", "uid-theirs"
    for pod in (theirs, mine):
        cache.pods.on_upsert(pod)
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([name_of()], UNMANAGED)
    theirs.metadata.resource_version = mine.metadata.resource_version = "2"
    cache.pods.on_delete(theirs)
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([name_of()], {})
    cache.pods.on_delete(mine)
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([], {})


def test_pods_of_one_name_and_owner_in_two_namespaces_are_independent(cache: ClusterCache) -> None:
    pods = [pod_seen(owner="uid-unknown") for _ in ("b", "c")]
    for version, (pod, namespace) in enumerate(zip(pods, ("b", "c"), strict=True), 1):
        pod.metadata.namespace, pod.metadata.uid = namespace, f"uid-{namespace}"
        pod.metadata.resource_version = str(version)
        cache.pods.on_upsert(pod)
    assert unmanaged_on_node(cache.observe()) == {"nvidia.com/gpu": 2, "pods": 2}
    for version, pod in enumerate(pods, 3):
        pod.metadata.resource_version = str(version)
        cache.pods.on_delete(pod)
    assert unmanaged_on_node(cache.observe()) == {}


def test_a_pod_whose_labels_are_edited_becomes_unmanaged(cache: ClusterCache) -> None:
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen(owner=UID))
    assert ours(cache.observe()) == [name_of()]
    edited = pod_seen(version=2, owner=UID)
    edited.metadata.labels[ATTEMPT_LABEL] = "1"
    cache.pods.on_upsert(edited)
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([], UNMANAGED)
    cache.pods.on_upsert(pod_seen(version=3, owner=UID))
    observed = cache.observe()
    assert (ours(observed), unmanaged_on_node(observed)) == ([name_of()], {})


# A user who may create pods in the job's namespace can compute the name of a pod of any attempt, and write its labels
# and its owner.


def test_a_pod_of_an_attempt_that_has_not_begun_is_not_the_lead_pod(cache: ClusterCache) -> None:
    cache.pods.on_upsert(pod_seen(owner=UID, slot=(0, 999)))
    cache.jobs.on_upsert(job_seen())
    assert cache.pods.lead_pod(UID, "trainer") is None
    cache.pods.on_upsert(pod_seen(owner=UID))
    lead = cache.pods.lead_pod(UID, "trainer")
    assert lead is not None
    assert lead.name == name_of()


def test_a_pod_of_an_attempt_that_has_not_begun_removes_no_pod_that_ended(cache: ClusterCache) -> None:
    cache.jobs.on_upsert(job_seen())
    for slot in ((0, 0), (0, 999)):
        pod = pod_seen(owner=UID, slot=slot, phase="Succeeded")
        cache.pods.on_upsert(pod)
        cache.pods.on_delete(pod)
    assert ours(cache.observe()) == [name_of()]


def test_unmanaged_pods_neither_wake_the_leader_nor_count_as_unbound() -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    pod = in_another_namespace()
    pod.spec.node_name = ""
    assert changes.during(lambda: cache.pods.on_upsert(pod)) == 0
    assert not cache.pods.has_unbound()


def test_pods_of_a_deleted_job_are_unmanaged_also_for_a_new_job_of_its_name(cache: ClusterCache) -> None:
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(pod_seen(owner=UID))
    cache.jobs.on_delete(job_seen(version=2))
    again = job_seen(version=3)
    again.metadata.uid = "uid-again"
    cache.jobs.on_upsert(again)
    observed = cache.observe()
    assert (observed.pods, unmanaged_on_node(observed)) == ({}, UNMANAGED)


def decide_with_a_waiting_gang(cache: ClusterCache, *pods: V1Pod) -> CycleResult:
    """A cycle with these pods and two jobs on a node of 8 GPUs: one runs with one pod of one GPU there, and one of
    another namespace waits for four GPUs."""
    meta = {"name": "h200", "uid": "f", "resourceVersion": "1"}
    flavor = {"metadata": meta, "spec": {"nodeLabels": {"rack": "r1"}}}
    cache.flavors.on_upsert(read(RawCustomObject, flavor))
    share = {"flavor": "h200", "guaranteed": {"nvidia.com/gpu": "8", "pods": "100"}}
    queue = {"metadata": {**meta, "name": "research"}}
    cache.queues.on_upsert(read(RawCustomObject, {**queue, "spec": {"namespaceSelector": {}, "resources": [share]}}))
    running = job_document(roles=[{"name": "trainer", "replicas": 1, "template": template()}])
    at = "2026-11-21T10:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "lastTransitionTime": at} for kind in ("Admitted", "PodsReady")
    ]
    placement = [{"role": "trainer", "flavor": "h200", "nodes": [{"node": "n1", "indexes": "0"}]}]
    times = {"submittedAt": at, "admittedAt": at, "startedAt": at}
    running["status"] = {**times, "observedGeneration": 1, "placement": placement, "conditions": conditions}
    cache.jobs.on_upsert(read(RawCustomObject, running))
    waiting = job_document("victim", 2, roles=[{"name": "trainer", "replicas": 4, "template": template()}])
    waiting["metadata"]["namespace"] = "other"
    cache.jobs.on_upsert(read(RawCustomObject, waiting))
    for pod in pods:
        cache.pods.on_upsert(pod)
    return Engine().reconcile(cache.observe())


def admitted(result: CycleResult) -> list[str]:
    return [one.gang_uid for one in result.decisions if isinstance(one, Admit)]


def test_pods_outside_the_placement_use_their_node_and_are_deleted(cache: ClusterCache) -> None:
    extra = [pod_seen(owner=UID, slot=(index, 0)) for index in range(1, 8)]
    result = decide_with_a_waiting_gang(cache, pod_seen(owner=UID), *extra)
    assert admitted(result) == []
    assert {one.name for one in result.writes if isinstance(one, DeletePod)} == {pod.metadata.name for pod in extra}


def test_a_pod_of_the_placement_uses_what_it_requests(cache: ClusterCache) -> None:
    pod = pod_seen(owner=UID)
    pod.spec.containers[0].resources.limits["nvidia.com/gpu"] = "8"
    assert admitted(decide_with_a_waiting_gang(cache, pod)) == []


def test_the_waiting_gang_fits_beside_the_pod_of_the_placement(cache: ClusterCache) -> None:
    assert admitted(decide_with_a_waiting_gang(cache, pod_seen(owner=UID))) == ["uid-victim"]
