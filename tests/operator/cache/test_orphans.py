"""Pods of jobs that do not exist any more: which are charged to their queue, and which are deleted."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, serve
from tests.operator.caches import new_cache, unmanaged_usage
from tests.operator.objects import job_document, job_seen, name_of, node_seen, pod_seen, read, template

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject, V1Pod, V1PodAnnotations
from muster.model import Resources, RunningGang
from muster.state import snapshot_of
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.runners.create_pods.pod_signatures import MAX_CLOCK_SKEW_S, PodSigner
from muster_operator.shared_key import SharedKey

UID = "uid-llama"
CREATED = "2026-11-21T10:00:00Z"
AT = 1_795_255_200  # the same
KEY = b"k" * 32
ONE_GPU = Resources.of({"nvidia.com/gpu": 1, "pods": 1})
API: Any = None


def signer(key: bytes = KEY, at: float = AT) -> PodSigner:
    return PodSigner(SharedKey(API, "muster-system", "key", key), lambda: at)


def signed(
    slot: tuple[int, int] = (0, 0),
    *,
    by: PodSigner | None = None,
    queue: str = "research",
    uid: str = UID,
    pinned_to: str = "n1",
    **fields: Any,
) -> V1Pod:
    """A pod that Muster created for the job, and whose owner reference was removed."""
    pod = pod_seen(owner=uid, slot=slot, **fields)
    meta = pod.metadata
    meta.labels |= {"muster.dev/job": uid.removeprefix("uid-"), "muster.dev/job-uid": uid}
    meta.owner_references.clear()
    meta.creation_timestamp = CREATED
    pod.spec.termination_grace_period_seconds = 86_400
    annotations = {"muster.dev/queue": queue}
    manifest = {"metadata": {"namespace": "team", "name": meta.name, "labels": meta.labels, "annotations": annotations}}
    (by or signer()).sign(manifest, pinned_to, ONE_GPU)
    meta.annotations = V1PodAnnotations(queue, annotations["muster.dev/signature"])
    return pod


@pytest.fixture
def cache() -> ClusterCache:
    """A node, its flavor, and a queue that admits every namespace, with a limit of one minute; one that admits none."""
    cache, _ = new_cache(signatures=signer())
    fill(cache)
    return cache


def fill(cache: ClusterCache) -> None:
    cache.nodes.on_upsert(node_seen())
    meta = {"name": "h200", "uid": "f", "resourceVersion": "1"}
    cache.flavors.on_upsert(read(RawCustomObject, {"metadata": meta, "spec": {"nodeLabels": {"rack": "r1"}}}))
    share = {"flavor": "h200", "guaranteed": {"nvidia.com/gpu": "8", "pods": "100"}}
    for name, more in (("research", {"namespaceSelector": {}, "maxGracePeriodSeconds": 60}), ("closed", {})):
        queue = {"metadata": {**meta, "name": name}, "spec": {"resources": [share], **more}}
        cache.queues.on_upsert(read(RawCustomObject, queue))


def charged(cache: ClusterCache) -> list[RunningGang]:
    return list(snapshot_of(cache.observe()).snapshot.running)


def free_gpus(cache: ClusterCache) -> int:
    """GPUs of the node that no gang and no unmanaged pod uses, for the planner."""
    snapshot = snapshot_of(cache.observe()).snapshot
    (node,) = snapshot.nodes
    used = sum(
        role.request.get("nvidia.com/gpu") * part.replicas
        for one in snapshot.running
        for role in one.gang.roles
        for part in one.placement
        if part.role == role.name
    )
    return node.allocatable.get("nvidia.com/gpu") - node.unmanaged_usage.get("nvidia.com/gpu") - used


def test_a_pod_of_a_deleted_job_is_charged_to_its_queue_until_it_has_ended(cache: ClusterCache) -> None:
    cache.pods.on_upsert(signed())
    (gang,) = charged(cache)
    assert (gang.state, gang.gang.queue, gang.gang.name) == ("terminating", "research", "team/llama")
    assert (gang.gang.grace_s, gang.placement[0].nodes) == (60.0, (("n1", 1),))
    assert gang.waits_for == f"pod {name_of(UID)} on n1 has ended", "for the messages of those that wait"
    assert free_gpus(cache) == 7, "counted once"
    cache.pods.on_upsert(signed(version=2, phase="Failed"))
    assert (charged(cache), free_gpus(cache)) == ([], 8)


def test_a_job_that_exists_is_charged_itself_also_after_its_pods_lost_their_owner(cache: ClusterCache) -> None:
    cache.jobs.on_upsert(job_seen())
    cache.pods.on_upsert(signed())
    observed = cache.observe()
    assert observed.orphans == ()
    assert [pod.name for pod in observed.pods[UID]] == [name_of()]
    cache.jobs.on_delete(job_seen(version=2))
    assert [one.view.name for one in cache.observe().orphans] == [name_of()]
    cache.jobs.on_upsert(job_seen(version=3))
    assert cache.observe().orphans == ()


def test_a_pod_that_is_not_bound_yet_is_charged_unless_it_is_being_deleted(cache: ClusterCache) -> None:
    """Between its deletion and its removal a finalizer may keep it for ever, and nothing runs in it."""
    pod = signed(node="")
    term = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    pinned = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [term]}]}}
    body = template(affinity={"nodeAffinity": pinned})["spec"]
    pod.spec.affinity = read(V1Pod, {"metadata": {}, "spec": body, "status": {}}).spec.affinity
    cache.pods.on_upsert(pod)
    assert (len(charged(cache)), free_gpus(cache)) == (1, 7)
    pod.metadata.resource_version, pod.metadata.deletion_timestamp = "2", CREATED
    cache.pods.on_upsert(pod)
    assert (charged(cache), free_gpus(cache)) == ([], 8)


def unsigned() -> V1Pod:
    pod = signed()
    pod.metadata.annotations = V1PodAnnotations("research", "")
    return pod


def signed_by_another_key() -> V1Pod:
    return signed(by=signer(b"x" * 32))


def of_another_queue() -> V1Pod:
    pod = signed(queue="closed")
    pod.metadata.annotations = V1PodAnnotations("research", pod.metadata.annotations.signature)
    return pod


def in_another_namespace() -> V1Pod:
    pod = signed()
    pod.metadata.namespace = "strangers"
    return pod


def of_another_job() -> V1Pod:
    pod = signed()
    pod.metadata.name = name_of("uid-other")
    pod.metadata.labels |= {"muster.dev/job": "other", "muster.dev/job-uid": "uid-other"}
    return pod


def with_the_signature_of_another_pod() -> V1Pod:
    pod = signed((1, 0))
    pod.metadata.annotations = signed().metadata.annotations
    return pod


def created_again_later() -> V1Pod:
    pod = signed()
    pod.metadata.creation_timestamp = "2026-11-21T10:06:00Z"
    return pod


def with_another_time_in_its_signature() -> V1Pod:
    pod = created_again_later()
    _, _, signed_text = pod.metadata.annotations.signature.partition(".")
    pod.metadata.annotations = V1PodAnnotations("research", f"{AT + 360}.{signed_text}")
    return pod


def on_another_node() -> V1Pod:
    return signed(pinned_to="n2")


def with_another_request_in_its_signature() -> V1Pod:
    pod = signed()
    text = pod.metadata.annotations.signature.replace('"nvidia.com/gpu":1', '"nvidia.com/gpu":8')
    pod.metadata.annotations = V1PodAnnotations("research", text)
    return pod


def without_a_request_in_its_signature() -> V1Pod:
    pod = signed()
    at, digest, _ = pod.metadata.annotations.signature.split(".", 2)
    pod.metadata.annotations = V1PodAnnotations("research", f"{at}.{digest}")
    return pod


def with_a_signature_that_is_no_text_of_ours() -> V1Pod:
    pod = signed()
    pod.metadata.annotations = V1PodAnnotations("research", "²." + "\ud83d" * 9 + "x" * 9999)
    return pod


def with_a_signature_that_is_no_valid_text() -> V1Pod:
    pod = signed()
    pod.metadata.annotations = V1PodAnnotations("research", f"{AT}.\ud83d.\ud83d")
    return pod


FORGED = [
    unsigned, signed_by_another_key, of_another_queue, in_another_namespace, of_another_job,
    with_the_signature_of_another_pod, created_again_later, with_another_time_in_its_signature,
    on_another_node, with_another_request_in_its_signature, without_a_request_in_its_signature,
    with_a_signature_that_is_no_text_of_ours, with_a_signature_that_is_no_valid_text,
]  # fmt: skip


@pytest.mark.parametrize("make", FORGED, ids=lambda make: make.__name__)
def test_a_forged_pod_is_charged_to_no_queue_and_uses_its_node(make: Callable[[], V1Pod], cache: ClusterCache) -> None:
    cache.pods.on_upsert(make())
    assert (cache.observe().orphans, charged(cache)) == ((), [])
    assert unmanaged_usage(cache.observe()) == {"nvidia.com/gpu": 1, "pods": 1}


def suspended_job(*, attempt: int = 1) -> RawCustomObject:
    """A job that was admitted `attempt` times, and released everything."""
    document = job_document()
    conditions = [
        {"type": kind, "status": status, "reason": "Suspended", "lastTransitionTime": CREATED}
        for kind, status in (("Admitted", "False"), ("Suspended", "True"))
    ]
    status = {"observedGeneration": 1, "attempt": attempt, "submittedAt": CREATED, "conditions": conditions}
    return read(RawCustomObject, {**document, "spec": {**document["spec"], "suspend": True}, "status": status})


@pytest.mark.parametrize("make", FORGED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("of", [job_seen, suspended_job], ids=["never admitted", "suspended"])
def test_a_forged_pod_of_a_job_that_is_not_admitted_is_charged_to_no_queue_and_uses_its_node(
    make: Callable[[], V1Pod], of: Callable[[], RawCustomObject], cache: ClusterCache
) -> None:
    cache.jobs.on_upsert(of())
    cache.pods.on_upsert(make())
    assert (charged(cache), free_gpus(cache)) == ([], 7)


def test_the_pods_of_a_suspended_job_are_charged_until_they_have_ended(cache: ClusterCache) -> None:
    cache.jobs.on_upsert(suspended_job())
    cache.pods.on_upsert(signed())
    cache.pods.on_upsert(unsigned_beside())
    (gang,) = charged(cache)
    assert (gang.state, gang.placement[0].replicas, free_gpus(cache)) == ("terminating", 1, 6)
    cache.pods.on_upsert(signed(version=2, phase="Failed"))
    assert (charged(cache), free_gpus(cache)) == ([], 7)


def test_a_larger_copy_of_a_pod_of_a_suspended_job_is_charged_what_the_pod_was_admitted_with(
    cache: ClusterCache,
) -> None:
    cache.jobs.on_upsert(suspended_job())
    pod = signed()
    pod.spec.containers[0].resources.limits["nvidia.com/gpu"] = "6"
    cache.pods.on_upsert(pod)
    (gang,) = charged(cache)
    assert (gang.gang.roles[0].request, free_gpus(cache)) == (ONE_GPU, 2)


def test_while_the_key_is_not_known_pods_of_jobs_that_exist_are_charged() -> None:
    """Otherwise the next job of the queue would be admitted while they still run."""
    late = signer()
    late.key.clear()
    cache, _ = new_cache(signatures=late)
    fill(cache)
    cache.jobs.on_upsert(suspended_job())
    cache.pods.on_upsert(unsigned())
    assert len(charged(cache)) == 1
    late.key._bytes = KEY
    assert charged(cache) == []
    late.key.clear()
    assert charged(cache) == [], "what is known stays known"


def test_a_copy_of_a_pod_with_a_larger_request_is_charged_what_the_pod_was_admitted_with(cache: ClusterCache) -> None:
    """Made within minutes, with the name of a pod that was deleted: the rest is unmanaged usage of its node."""
    pod = signed()
    pod.spec.containers[0].resources.limits["nvidia.com/gpu"] = "6"
    cache.pods.on_upsert(pod)
    (gang,) = charged(cache)
    assert (gang.gang.roles[0].request, free_gpus(cache)) == (ONE_GPU, 2)
    (node,) = snapshot_of(cache.observe()).snapshot.nodes
    assert node.unmanaged_usage.get("nvidia.com/gpu") == 5


def test_a_forged_pod_beside_genuine_ones_is_not_charged_with_them(cache: ClusterCache) -> None:
    cache.pods.on_upsert(signed((1, 0)))
    cache.pods.on_upsert(unsigned())
    (gang,) = charged(cache)
    assert (gang.placement[0].replicas, free_gpus(cache)) == (1, 6)


def test_pods_whose_namespace_the_queue_does_not_admit_are_charged_to_no_queue(cache: ClusterCache) -> None:
    for version, queue in enumerate(("closed", "unknown"), 1):
        cache.pods.on_upsert(signed(version=version, queue=queue))
        assert (charged(cache), free_gpus(cache)) == ([], 7)
        assert len(cache.observe().orphans) == 1, "it is deleted nevertheless"


def test_clocks_of_operator_and_api_server_may_differ(cache: ClusterCache) -> None:
    for version, off in enumerate((-MAX_CLOCK_SKEW_S, MAX_CLOCK_SKEW_S), 1):
        cache.pods.on_upsert(signed(version=version, by=signer(at=AT + off)))
        assert len(charged(cache)) == 1


def test_without_the_key_no_pod_is_taken_for_ours_and_with_it_those_of_an_earlier_leader_are() -> None:
    late = signer()
    late.key.clear()
    cache, _ = new_cache(signatures=late)
    cache.pods.on_upsert(signed())
    assert cache.observe().orphans == ()
    late.key._bytes = KEY
    assert len(cache.observe().orphans) == 1


def test_pods_that_appeared_while_the_key_was_not_known_are_verified_once_the_same_key_is_known_again() -> None:
    """An operator forgets the key when it leads again, and lists what another leader has created before it reads it."""
    again = signer()
    cache, _ = new_cache(signatures=again)
    fill(cache)
    assert cache.observe().orphans == ()
    again.key.clear()
    cache.jobs.on_upsert(suspended_job())
    cache.pods.on_upsert(unsigned_beside())
    cache.pods.on_upsert(signed(uid="uid-gone"))
    again.key._bytes = KEY
    assert [one.view.job_uid for one in cache.observe().orphans] == ["uid-gone"], "charged and deleted"
    assert [one.gang.name for one in charged(cache)] == ["team/gone"], "made-up ones of jobs that exist are not"


def test_every_change_of_such_a_pod_wakes_the_leader() -> None:
    cache, changes = new_cache(signatures=signer())
    cache.pods.on_upsert(signed(node=""))
    pod = signed(node="", version=2)
    pod.metadata.deletion_timestamp = CREATED
    assert changes.during(lambda: cache.pods.on_upsert(pod)) >= 1


# ---- deletion


class Cluster(Server):
    """Has these jobs, and records deletions of pods."""

    def __init__(self, *jobs: dict[str, Any], refuse: int = 0) -> None:
        super().__init__()
        self.jobs, self.refuse = jobs, refuse
        self.looked_for: list[str] = []
        self.deleted: list[tuple[str, dict[str, Any]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/trainingjobs"):
            self.looked_for.append(request.query["fieldSelector"])
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": list(self.jobs)})
        if request.method == "DELETE" and "/pods/" in request.path:
            self.deleted.append((request.path.rpartition("/")[2], json.loads(await request.text())))
            if self.refuse:
                return web.json_response({"code": self.refuse, "message": "no"}, status=self.refuse)
            return web.json_response({"metadata": {"resourceVersion": "10"}})
        return await super().answer(request)


def run(cluster: Cluster, *pods: V1Pod, cycles: int = 1, node: str = "True") -> OperatorHarness:
    """A leader that finds these pods. `node`: whether n1 has been ready for the last ten minutes."""
    found: list[OperatorHarness] = []

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        found.append(harness)
        if node != "True":
            harness.cache.nodes.on_upsert(node_seen("n1", 5, ready=node))
            harness.cache._clock = lambda: AT + 600.0
        for pod in pods:
            harness.cache.pods.on_upsert(pod)
        for _ in range(cycles):
            await harness.run_cycle()

    serve(cluster, scenario)
    return found[0]


def test_the_pods_of_a_job_that_the_api_server_does_not_have_are_deleted_once_with_the_grace_period_of_the_queue() -> (
    None
):
    cluster = Cluster()
    run(cluster, signed(), signed((1, 0)), unsigned_beside(), cycles=3)
    assert cluster.looked_for == ["metadata.name=llama"]
    wanted = {name_of(UID, *slot): 600 for slot in ((0, 0), (1, 0))}
    assert {name: options["gracePeriodSeconds"] for name, options in cluster.deleted} == wanted
    assert len(cluster.deleted) == 2
    assert {options["preconditions"]["uid"] for _, options in cluster.deleted} == {f"uid-{name}" for name in wanted}


def unsigned_beside() -> V1Pod:
    pod = signed((2, 0))
    pod.metadata.annotations = V1PodAnnotations()
    return pod


def test_pods_of_a_job_that_exists_although_the_cache_lacks_it_are_not_deleted() -> None:
    cluster = Cluster({"metadata": {"name": "llama", "namespace": "team", "uid": UID}})
    harness = run(cluster, signed(), cycles=3)
    assert (cluster.deleted, len(cluster.looked_for)) == ([], 1)
    assert harness.term.orphans_left, "it is looked for again after a pause"


def test_a_job_of_the_same_name_with_another_uid_is_another_job() -> None:
    cluster = Cluster({"metadata": {"name": "llama", "namespace": "team", "uid": "uid-again"}})
    run(cluster, signed())
    assert [name for name, _ in cluster.deleted] == [name_of()]


@pytest.mark.parametrize(("grace_s", "written"), [(86_400, [600]), (600, []), (2, [])])
def test_a_pod_that_terminates_with_a_longer_grace_period_gets_the_one_of_the_queue(
    grace_s: int, written: list[int]
) -> None:
    pod = signed()
    pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = CREATED, grace_s
    cluster = Cluster()
    run(cluster, pod, cycles=2)
    assert [options["gracePeriodSeconds"] for _, options in cluster.deleted] == written


@pytest.mark.parametrize(("node", "grace_s"), [("Unknown", [0]), ("False", [])])
def test_pods_on_a_lost_node_are_deleted_at_once_as_those_of_jobs_that_exist(node: str, grace_s: list[int]) -> None:
    """No kubelet would end them: they would be charged until the node is deleted."""
    pod = signed()
    pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = CREATED, 30
    cluster = Cluster()
    run(cluster, pod, cycles=2, node=node)
    assert [options["gracePeriodSeconds"] for _, options in cluster.deleted] == grace_s


def test_a_refused_deletion_is_repeated_after_a_pause_and_stops_nothing_else() -> None:
    cluster = Cluster(refuse=403)
    harness = run(cluster, signed(), cycles=3)
    assert len(cluster.deleted) == 1
    assert harness.term.orphans_left


def test_a_leader_that_could_not_read_the_key_at_first_recognizes_pods_once_it_can() -> None:
    class Late(Cluster):
        failures = 1

        async def answer(self, request: web.Request) -> web.StreamResponse:
            if "/secrets/" not in request.path:
                return await super().answer(request)
            self.failures -= 1
            if self.failures >= 0:
                return web.json_response({"code": 500, "message": "etcdserver: leader changed"}, status=500)
            return web.json_response({"data": {"key": base64.b64encode(KEY).decode()}})

    cluster = Late()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.signer.clear()
        harness.cache.pods.on_upsert(signed())
        await harness.run_cycle()
        assert (harness.cache.pods.orphans(), cluster.deleted) == ((), [])
        harness.now = 60.0
        await harness.run_cycle()
        assert [name for name, _ in cluster.deleted] == [name_of(UID)]

    serve(cluster, scenario)


def test_pods_of_a_job_that_exists_do_not_keep_those_of_others_from_being_deleted() -> None:
    """A user may have more such pods than one cycle deletes: of a job that is edited so that it cannot be read."""
    cluster = Cluster({"metadata": {"name": "a", "namespace": "team", "uid": "uid-a"}})
    run(cluster, *(signed((index, 0), uid="uid-a") for index in range(300)), signed(), cycles=2)
    assert [name for name, _ in cluster.deleted] == [name_of()]


def test_jobs_are_looked_for_at_the_same_time() -> None:
    class Slow(Cluster):
        waiting, both = 0, asyncio.Event()

        async def answer(self, request: web.Request) -> web.StreamResponse:
            if request.method == "GET" and request.path.endswith("/trainingjobs"):
                self.waiting += 1
                if self.waiting == 2:
                    self.both.set()
                await asyncio.wait_for(self.both.wait(), 20)
            return await super().answer(request)

    cluster = Slow()
    run(cluster, signed(), signed(uid="uid-other"))
    assert len(cluster.deleted) == 2


def test_without_the_right_to_the_key_no_pod_is_created_and_the_jobs_events_say_why() -> None:
    server = Server([("GET", "/secrets/", 403)], says="secrets is forbidden")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.signer.clear()
        harness.submit("llama", 5)
        for _ in range(3):
            await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods") == 0
        notes = [one.manifest["note"] for one in harness.recorder.pending()]
        assert "Secret muster-system/key, the operator's key: secrets is forbidden" in notes

    serve(server, scenario)


@pytest.mark.parametrize("fields", [{"queue": "research" * 32}, {"more": "\x01" * 3000}])
def test_of_a_pod_that_a_user_made_up_the_operator_keeps_no_long_text(
    cache: ClusterCache, fields: dict[str, str]
) -> None:
    """Each annotation may have 256 KiB, and any user who may create pods writes as many as his quota of pods allows."""
    pod = signed()
    before = pod.metadata.annotations
    pod.metadata.annotations = V1PodAnnotations(
        fields.get("queue", before.queue), before.signature + fields.get("more", "")
    )
    cache.pods.on_upsert(pod)
    assert charged(cache) == []
    kept = cache.pods.find("team", pod.metadata.name)
    assert kept is not None
    assert (kept.queue, kept.signature) == ("", "")
