"""Ownership of pods: any user may write any uid into an ownerReference; only namespace and name count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.operator.caches import new_cache
from tests.operator.objects import job_seen, name_of, node_seen, pod_seen

from muster.cluster import ObservedState, PodView
from muster.kube.objects import V1Pod
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.labels import ATTEMPT, INDEX, ROLE

UID = "uid-llama"
STAYS = {"nvidia.com/gpu": 1, "pods": 1}


def taken(world: ObservedState) -> dict[str, int]:
    """Unmanaged usage of the node."""
    return dict(world.nodes[0].unmanaged_usage.items)


def ours(world: ObservedState) -> list[str]:
    pods: tuple[PodView, ...] = world.pods.get(UID, ())
    return [pod.name for pod in pods]


def elsewhere() -> V1Pod:
    """A pod in another namespace that is otherwise identical to a pod of the job."""
    pod = pod_seen(owner=UID, seat=(0, 999))
    pod.metadata.namespace = "strangers"
    return pod


def of_another_name() -> V1Pod:
    return pod_seen("llama-trainer-0-fffff", owner=UID)


def that_says_it_is_another_attempt() -> V1Pod:
    pod = pod_seen(owner=UID)
    pod.metadata.labels[ATTEMPT] = "999"
    return pod


def that_says_it_is_another_role() -> V1Pod:
    pod = pod_seen(owner=UID)
    pod.metadata.labels[ROLE] = "worker"
    return pod


def below_zero() -> V1Pod:
    pod = pod_seen(name_of(UID, -1), owner=UID)
    pod.metadata.labels[INDEX] = "-1"
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
    elsewhere,
    of_another_name,
    that_says_it_is_another_attempt,
    that_says_it_is_another_role,
    below_zero,
    of_another_job_of_that_uid,
    of_two_owners,
]


@pytest.fixture
def seen() -> ClusterCache:
    seen, _ = new_cache()
    seen.nodes.on_upsert(node_seen())
    return seen


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("pods_first", [True, False], ids=["listed before the job", "listed after the job"])
def test_a_pod_that_only_claims_an_owner_is_unmanaged_usage(
    make: Callable[[], V1Pod], pods_first: bool, seen: ClusterCache
) -> None:
    pod = make()
    if pods_first:
        seen.pods.on_upsert(pod)
    seen.jobs.on_upsert(job_seen())
    if not pods_first:
        seen.pods.on_upsert(pod)
    world = seen.observe()
    assert (ours(world), taken(world)) == ([], STAYS)
    assert seen.pods.get(UID, pod.metadata.name) is None
    assert seen.pods.lead_pod(UID, "trainer") is None
    assert not seen.pods.has_pod_in_phase(UID, ("Running",))
    seen.jobs.on_delete(job_seen(version=2))
    assert taken(seen.observe()) == STAYS
    pod.metadata.resource_version = "3"
    seen.pods.on_delete(pod)
    assert taken(seen.observe()) == {}


def test_an_unmanaged_pod_of_the_same_name_does_not_affect_ours(
    seen: ClusterCache,
) -> None:
    seen.jobs.on_upsert(job_seen())
    mine, theirs = pod_seen(owner=UID), pod_seen(owner=UID)
    theirs.metadata.namespace, theirs.metadata.uid = "strangers", "uid-theirs"
    for pod in (theirs, mine):
        seen.pods.on_upsert(pod)
    world = seen.observe()
    assert (ours(world), taken(world)) == ([name_of()], STAYS)
    theirs.metadata.resource_version = mine.metadata.resource_version = "2"
    seen.pods.on_delete(theirs)
    world = seen.observe()
    assert (ours(world), taken(world)) == ([name_of()], {})
    seen.pods.on_delete(mine)
    world = seen.observe()
    assert (ours(world), taken(world)) == ([], {})


def test_pods_of_one_name_and_owner_in_two_namespaces_are_independent(seen: ClusterCache) -> None:
    pods = [pod_seen(owner="uid-nobody") for _ in ("b", "c")]
    for version, (pod, namespace) in enumerate(zip(pods, ("b", "c"), strict=True), 1):
        pod.metadata.namespace, pod.metadata.uid = namespace, f"uid-{namespace}"
        pod.metadata.resource_version = str(version)
        seen.pods.on_upsert(pod)
    assert taken(seen.observe()) == {"nvidia.com/gpu": 2, "pods": 2}
    for version, pod in enumerate(pods, 3):
        pod.metadata.resource_version = str(version)
        seen.pods.on_delete(pod)
    assert taken(seen.observe()) == {}


def test_a_pod_whose_labels_are_edited_becomes_unmanaged(seen: ClusterCache) -> None:
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen(owner=UID))
    assert ours(seen.observe()) == [name_of()]
    edited = pod_seen(version=2, owner=UID)
    edited.metadata.labels[ATTEMPT] = "1"
    seen.pods.on_upsert(edited)
    world = seen.observe()
    assert (ours(world), taken(world)) == ([], STAYS)
    seen.pods.on_upsert(pod_seen(version=3, owner=UID))
    world = seen.observe()
    assert (ours(world), taken(world)) == ([name_of()], {})


def test_unmanaged_pods_neither_wake_the_leader_nor_count_as_unbound() -> None:
    seen, changes = new_cache()
    seen.jobs.on_upsert(job_seen())
    pod = elsewhere()
    pod.spec.node_name = ""
    assert changes.during(lambda: seen.pods.on_upsert(pod)) == 0
    assert not seen.pods.has_unbound()


def test_pods_of_a_deleted_job_are_unmanaged_also_for_a_new_job_of_its_name(seen: ClusterCache) -> None:
    seen.jobs.on_upsert(job_seen())
    seen.pods.on_upsert(pod_seen(owner=UID))
    seen.jobs.on_delete(job_seen(version=2))
    again = job_seen(version=3)
    again.metadata.uid = "uid-again"
    seen.jobs.on_upsert(again)
    world = seen.observe()
    assert (world.pods, taken(world)) == ({}, STAYS)
