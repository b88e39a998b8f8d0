"""A single-pod gang is admitted by its pod, which records the admission; its status follows."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import datetime
from math import inf
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, serve
from tests.operator.caches import new_cache, relist
from tests.operator.conftest import LONG_S
from tests.operator.election import Cluster, operator, until
from tests.operator.objects import create, job, job_document, node_seen, pod_seen, read, template

from muster import spec
from muster.cluster import ObjectWrites, PodView
from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.objects import RawTrainingJob, V1Pod
from muster.lifecycle import Timeouts, is_admitted, is_evicting, transitions
from muster.model import RolePlacement
from muster_operator.cache.admission_signing import (
    AdmissionSigner,
    PodAdmissionRecord,
    admission_record,
    admitted_status,
)
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.labels import ADMITTED
from muster_operator.pod_builder.pods import PodConfig, pod_manifest

SEAL = AdmissionSigner(b"k" * 32, "this")
FORGER = AdmissionSigner(b"o" * 32, "this")
EARLIER = AdmissionSigner(SEAL.key, "earlier")
POD = "POST /api/v1/namespaces/team/pods/llama-"
STATUS = "PATCH /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama/status"
ADMISSION = PodAdmissionRecord("uid-llama", 0, "trainer", "n1", "f", 1, 1795255210.25)
ALONE = [{"name": "trainer", "replicas": 1, "template": template()}]


def harness_of(api: AsyncKubeClient, jobs: int = 1) -> OperatorHarness:
    """A leader with the key, and a job of one pod."""
    harness = OperatorHarness(api)
    harness.term.signer = SEAL
    harness.cache.begin_term(SEAL)
    for number in range(jobs):
        harness.submit("llama" if number == 0 else f"llama-{number}", 5 + number, roles=ALONE)
    return harness


def submit_recorded(harness: OperatorHarness, name: str, number: int, at: float) -> None:
    """A job of one pod that only its pod records as admitted, since `at`."""
    harness.submit(name, 5 + number, roles=ALONE)
    pod = pod_seen("", 100 + number, node="n1", owner=f"uid-{name}")
    pod.metadata.annotations.admitted = SEAL.sign(PodAdmissionRecord(f"uid-{name}", 0, "trainer", "n1", "f", 1, at))
    harness.cache.pods.on_upsert(pod)


def pod_with_record(
    admission: PodAdmissionRecord = ADMISSION, seal: AdmissionSigner = SEAL, version: int = 6, **status: Any
) -> V1Pod:
    """The pod of the job as a watch delivers it."""
    pod = pod_seen("", version, node=admission.node, owner="uid-llama", seat=(0, admission.attempt), **status)
    pod.metadata.annotations.admitted = seal.sign(admission)
    return pod


def single_pod_job(version: int = 5, generation: int = 1, **fields: Any) -> RawTrainingJob:
    """The job as a watch delivers it."""
    document = job_document("llama", version, **{"roles": ALONE, **fields})
    document["metadata"]["generation"] = generation
    return read(RawTrainingJob, document)


def status_of(seen: ClusterCache) -> spec.TrainingJobStatus:
    (shown,) = seen.observe().jobs
    return shown.status


def seen_anew(pod: V1Pod, one: RawTrainingJob) -> ClusterCache:
    """The cache of an operator that has just become leader."""
    seen = new_cache()[0]
    relist(seen.pods, [pod], 7)
    relist(seen.jobs, [one], 7)
    seen.begin_term(AdmissionSigner(SEAL.key, "next"))
    return seen


def view(phase: str = "Running", **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}], **fields}


# ---- from one write to a bound pod


def test_the_pod_is_the_only_write_until_it_is_bound() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 0)
        assert harness.phase("llama") == "Admitted"
        assert harness.pending_events() == [("llama", "Admitted")]
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_upsert(seen_of(server, pod, phase="Pending"))
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 1)
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert written["phase"] == "Admitted"
        assert written["placement"][0]["nodes"][0]["node"] == pod.node
        assert written["observedGeneration"] == 1
        assert datetime.fromisoformat(written["submittedAt"]) == datetime.fromisoformat(NOW)
        assert not harness.cache.jobs.lagging()

    serve(server, story)


def test_one_status_records_admission_and_start() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_upsert(seen_of(server, pod, **view()))
        await harness.run_cycle()
        assert server.count(STATUS) == 1
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert (written["phase"], written["podsReady"]) == ("Running", 1)
        assert written["placement"][0]["nodes"][0]["node"] == pod.node

    serve(server, story)


def seen_of(server: Server, pod: PodView, **status: Any) -> V1Pod:
    """The created pod, bound, as a watch delivers it."""
    number = next(n for n, call in enumerate(server.calls) if call.startswith("POST") and call.endswith(pod.name))
    seen = pod_seen(pod.name, server.version + 1, node=pod.node, owner=pod.job_uid, **status)
    seen.metadata.uid = "uid-1001"  # the first write
    seen.metadata.annotations.admitted = server.bodies[number]["metadata"]["annotations"]["muster.dev/admitted"]
    return seen


def test_the_status_of_a_larger_gang_is_written_first() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api, jobs=0)
        harness.submit("llama", 5)
        await harness.run_cycle()
        assert server.calls[0] == STATUS
        assert server.count(POD) == 2
        assert all("annotations" not in body.get("metadata", {}) or not body["metadata"]["annotations"]
                   for body in server.bodies)  # fmt: skip

    serve(server, story)


def test_without_the_key_the_status_is_written_first() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        harness.term.signer = None
        await harness.run_cycle()
        assert server.calls[0] == STATUS
        assert server.count(POD) == 1

    serve(server, story)


def test_in_a_burst_statuses_wait_a_minute_for_their_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api, jobs=0)
        now = harness.cache._clock()
        monkeypatch.setattr("muster_operator.write_queue.time.time", lambda: now)
        for number in range(70):
            submit_recorded(harness, f"crowd{number}", number, now - (59.0 if number < 65 else 1.0))
        assert len(harness.cache.jobs.lagging()) == 70
        harness.cache.observe()
        patches = "PATCH /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/"
        assert len(harness.queue.next_deferred()) == 0
        now += 1.5
        assert len(harness.queue.next_deferred()) == 64, "a piece of those who have waited long enough"
        await harness.run_cycle()
        assert server.count(patches) == 70, "fewer than a crowd are left"

    serve(server, story)


# ---- the next leader


def test_the_next_leader_has_the_decided_status() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        known = harness.cache.jobs.get("uid-llama")
        assert known is not None
        (pod,) = harness.cache.observe().pods["uid-llama"]
        seen = seen_anew(seen_of(server, pod, phase="Pending"), single_pod_job())
        assert status_of(seen) == known.job.status
        assert [one.uid for one in seen.jobs.lagging()] == ["uid-llama"]

    serve(server, story)


@pytest.mark.parametrize("first", ["job", "pod", "term"])
def test_the_record_counts_in_any_order_of_job_pod_and_term(first: str) -> None:
    seen = new_cache()[0]
    acts: dict[str, Callable[[], object]] = {
        "job": lambda: seen.jobs.on_upsert(single_pod_job()),
        "pod": lambda: seen.pods.on_upsert(pod_with_record()),
        "term": lambda: seen.begin_term(SEAL),
    }
    acts.pop(first)()
    for act in acts.values():
        assert not any(is_admitted(one.status) for one in seen.observe().jobs)
        act()
    assert is_admitted(status_of(seen))


FORGERIES = {
    "another key": pod_with_record(seal=FORGER),
    "another node": pod_seen("", 6, node="n2", owner="uid-llama"),
    "another attempt": pod_seen("", 6, node="n1", owner="uid-llama", seat=(0, 1)),
    "another flavor": pod_with_record(),
    "no text": pod_with_record(),
}
FORGERIES["another node"].metadata.annotations.admitted = SEAL.sign(ADMISSION)
FORGERIES["another attempt"].metadata.annotations.admitted = SEAL.sign(ADMISSION)
FORGERIES["another flavor"].metadata.annotations.admitted = SEAL.sign(ADMISSION).replace('"f"', '"g"')
FORGERIES["no text"].metadata.annotations.admitted = '{"at": {}}'


@pytest.mark.parametrize("pod", FORGERIES.values(), ids=FORGERIES.keys())
def test_only_a_record_signed_by_an_operator_admits_a_job(pod: V1Pod) -> None:
    seen = seen_anew(pod, single_pod_job())
    assert not is_admitted(status_of(seen))
    assert not seen.jobs.lagging()


def test_a_pod_of_a_deleted_job_of_that_name_admits_nothing() -> None:
    document = job_document("llama", 5, roles=ALONE)
    document["metadata"]["uid"] = "uid-new"
    assert not is_admitted(status_of(seen_anew(pod_with_record(), read(RawTrainingJob, document))))


def test_a_newer_status_wins_over_the_record() -> None:
    finished = transitions.finish(
        admitted_status(job(roles=ALONE), ADMISSION), "Complete", "Completed", "", 1795255300.0
    )
    document = job_document("llama", 9, roles=ALONE)
    document["status"] = finished.model_dump(mode="json", by_alias=True, exclude_none=True)
    seen = seen_anew(pod_with_record(), read(RawTrainingJob, document))
    assert status_of(seen).phase == "Succeeded"
    assert not seen.jobs.lagging()


def test_it_stays_admitted_without_its_pod_and_its_status_precedes_the_next_pod() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_delete(seen_of(server, pod))
        await harness.run_cycle()
        writes = [call for call in server.calls if call.startswith((POD, STATUS))]
        assert [call.split()[0] for call in writes] == ["POST", "PATCH", "POST"]
        assert harness.phase("llama") == "Admitted"

    serve(server, story)


def test_in_a_new_term_a_deleted_pod_admits_nothing() -> None:
    """Another leader may have given its capacity away meanwhile."""
    seen = seen_anew(pod_with_record(), single_pod_job())
    assert is_admitted(status_of(seen))
    relist(seen.pods, [], 20)
    assert is_admitted(status_of(seen)), "until then it has only vanished"
    seen.begin_term(AdmissionSigner(SEAL.key, "after next"))
    assert not is_admitted(status_of(seen))
    assert not seen.jobs.lagging()


def test_a_record_of_a_former_leader_admits_nothing() -> None:
    seen = new_cache()[0]
    seen.jobs.on_upsert(single_pod_job())
    seen.begin_term(SEAL)
    seen.pods.on_upsert(pod_with_record(seal=EARLIER))
    assert not is_admitted(status_of(seen))


def test_a_leader_that_continues_keeps_its_trusted_records() -> None:
    seen = new_cache()[0]
    seen.begin_term(SEAL)
    seen.jobs.on_upsert(single_pod_job())
    seen.pods.on_upsert(pod_with_record())
    seen.jobs.on_upsert(single_pod_job(8, 2, priority=7))
    before = status_of(seen)
    seen.begin_term(SEAL)
    assert status_of(seen) == before
    assert not is_evicting(before)


@pytest.mark.parametrize(
    "more",
    [
        {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended", "lastTransitionTime": NOW}]},
        {"nomination": {"placement": [], "expiresAt": NOW}},
        {"attempt": 1},
    ],
    ids=["suspended", "has a hold", "another attempt"],
)
def test_a_record_of_an_earlier_attempt_does_not_count(more: dict[str, Any]) -> None:
    document = job_document("llama", 9, roles=ALONE)
    document["status"] = more
    seen = seen_anew(pod_with_record(), read(RawTrainingJob, document))
    assert not is_admitted(status_of(seen))


# ---- edits in between


def test_an_edit_that_does_not_affect_pods_keeps_the_admission() -> None:
    seen = seen_anew(pod_with_record(), single_pod_job())
    seen.jobs.on_upsert(single_pod_job(8, 2, priority=7))
    assert is_admitted(status_of(seen))
    assert not is_evicting(status_of(seen))
    seen.jobs.on_upsert(single_pod_job(9, 3, priority=8))
    assert not is_evicting(status_of(seen))


@pytest.mark.parametrize(
    "edit", [{"queue": "other"}, {"roles": [{**ALONE[0], "template": template(nodeSelector={"a": "b"})}]}]
)
def test_an_edit_of_an_immutable_field_evicts_the_job(edit: dict[str, Any]) -> None:
    seen = seen_anew(pod_with_record(), single_pod_job())
    seen.jobs.on_upsert(single_pod_job(8, 2, **edit))
    assert is_evicting(status_of(seen))
    assert status_of(seen).reason == "Edited"
    seen.jobs.on_upsert(single_pod_job(9, 3, **edit, priority=8))
    assert is_evicting(status_of(seen)), "a further edit does not change that"


def test_the_next_leader_evicts_an_edited_job() -> None:
    assert is_evicting(status_of(seen_anew(pod_with_record(), single_pod_job(8, 2, priority=7))))


def test_a_job_suspended_in_between_releases_its_capacity_and_resumes_in_a_new_attempt() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        harness.cache.jobs.on_upsert(single_pod_job(server.version + 1, 2, suspend=True))
        await harness.run_cycle()
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert (written["phase"], written["attempt"]) == ("Suspended", 1)
        assert server.count("DELETE /api/v1/namespaces/team/pods/llama-") == 1

    serve(server, story)


def test_a_job_edited_into_an_invalid_one_in_between_keeps_its_capacity() -> None:
    seen = seen_anew(pod_with_record(), single_pod_job())
    broken = job_document("llama", 8, roles="none")
    broken["metadata"]["generation"] = 2
    seen.jobs.on_upsert(read(RawTrainingJob, broken))
    assert is_admitted(status_of(seen))
    assert not is_evicting(status_of(seen))


# ---- rejections


@pytest.mark.parametrize("code", [403, 422, 500])
def test_a_job_whose_pod_is_rejected_is_not_admitted_and_delays_no_other(code: int) -> None:
    server = Server([("POST", r"/pods/llama-trainer", code)])

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        harness.submit("good", 9)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert server.count("PATCH /apis/muster.dev/v1alpha1/queues/research/status") == 1, "later phases as well"
        for _ in range(3):
            harness.term.engine.recheck(["uid-llama"])
            await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 0), "it has a pause, and no room on paper"
        assert harness.phase("llama") == "Pending"
        server.refuses.clear()
        harness.now += 60.0
        harness.term.engine.recheck(["uid-llama"])
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert (server.count(POD), server.count(STATUS)) == (2, 0)

    serve(server, story)


class Named(Server):
    """Another pod has the name."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.calls.append(POD)
            self.bodies.append({})
            return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
        return await super().answer(request)


def test_if_another_pod_has_its_name_the_status_is_written_first_after_a_pause() -> None:
    """That attempt then fails eventually, and the next one has other names."""
    server = Named()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        for _ in range(5):
            await harness.run_cycle()
            harness.term.engine.recheck(["uid-llama"])
        assert (server.count(POD), server.count(STATUS)) == (1, 0)
        assert ("llama", "PodRejected") in harness.pending_events()
        assert server.count("PATCH /apis/muster.dev/v1alpha1/queues/research/status") == 1
        harness.now += 60.0
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert (server.count(POD), server.count(STATUS)) == (2, 1)

    serve(server, story)


class Takes(Server):
    """A webhook removes annotations from pods."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        answer = await super().answer(request)
        if request.method == "POST" and request.path.endswith("/pods") and isinstance(answer, web.Response):
            document = json.loads(answer.text or "")
            del document["metadata"]["annotations"]
            return web.json_response(document)
        return answer


def test_if_the_annotation_is_removed_the_status_is_written_first_next_time() -> None:
    server = Takes()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS), server.count("DELETE")) == (1, 0, 1)
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_delete(pod_seen(pod.name, server.version + 1, owner="uid-llama"))
        harness.now += 60.0
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert (server.count(POD), server.count(STATUS), server.count("DELETE")) == (2, 1, 1)

    serve(server, story)


def test_after_four_failed_tries_the_status_is_written_first() -> None:
    """Then its start timeout counts."""
    server = Server([("POST", r"/pods/llama-trainer", 503)])

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        for _ in range(4):
            await harness.run_cycle()
            assert server.count(STATUS) == 0
            harness.now += 60.0
            harness.term.engine.recheck(["uid-llama"])
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert server.count(STATUS) == 1

    serve(server, story)


def test_lagging_statuses_get_half_of_the_budget_in_a_long_burst() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api, jobs=0)
        now = harness.cache._clock()
        for number in range(80):
            submit_recorded(harness, f"job{number}", number, now - 600.0)
        others = [ObjectWrites(f"other{number}", ()) for number in range(30)]
        harness.queue._deferred.update((one.job_uid, one) for one in others)
        harness.queue.throttle.take_budget = lambda limit: 10  # type: ignore[method-assign]
        piece = harness.queue.next_deferred()
        assert [one.job_uid.startswith("other") for one in piece] == [False] * 5 + [True] * 5

    serve(server, story)


class Edits(Server):
    """While the pod is created, the job is edited into a form that cannot be read."""

    harness: OperatorHarness

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            broken = job_document("llama", 50, roles="none")
            broken["metadata"]["generation"] = 2
            self.harness.cache.jobs.on_upsert(read(RawTrainingJob, broken))
        return await super().answer(request)


def test_a_pod_whose_job_became_invalid_during_creation_is_deleted() -> None:
    server = Edits()

    async def story(api: AsyncKubeClient) -> None:
        server.harness = harness = harness_of(api)
        await harness.run_cycle()
        assert server.count("DELETE /api/v1/namespaces/team/pods/llama-") == 1
        assert not harness.cache.jobs.lagging()

    serve(server, story)


def test_a_job_pending_for_a_cycle_is_admitted_by_its_pod_with_its_generation() -> None:
    server = Server()

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api)
        harness.queue.throttle._has_urgent_work = lambda: True  # no deferrable write is made
        for node in ("n1", "n2"):
            full = pod_seen(f"full-{node}", 3, node=node)
            full.spec.containers[0].resources.limits["nvidia.com/gpu"] = "8"
            harness.cache.pods.on_upsert(full)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (0, 0)
        gone = pod_seen("full-n1", 90, node="n1")
        harness.cache.pods.on_delete(gone)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 0)
        known = harness.cache.jobs.get("uid-llama")
        assert known is not None
        assert {one.observed_generation for one in known.job.status.conditions} == {1}

    serve(server, story)


def test_rejected_statuses_block_no_other_writes() -> None:
    server = Server([("PATCH", r"/trainingjobs/bad\d+/status", 422)])

    async def story(api: AsyncKubeClient) -> None:
        harness = harness_of(api, jobs=0)
        now = harness.cache._clock()
        for number in range(80):
            submit_recorded(harness, f"{'bad' if number < 66 else 'good'}{number}", number, now - 600.0)
        for _ in range(4):
            await harness.run_cycle()
        assert {one.job.metadata.name[:3] for one in harness.cache.jobs.lagging()} == {"bad"}

    serve(server, story)


# ---- records written by users


DEEP = '{"x":' * 2000


def test_an_endless_annotation_hides_no_pod() -> None:
    seen = new_cache()[0]
    seen.nodes.on_upsert(node_seen("n1"))
    pod = pod_seen("deep", 6, node="n1")
    pod.metadata.annotations.admitted = DEEP
    seen.pods.on_upsert(pod)
    mine = pod_seen("", 7, node="n1", owner="uid-llama")
    mine.metadata.annotations.admitted = DEEP
    seen.pods.on_upsert(mine)
    (node,) = seen.observe().nodes
    assert node.unmanaged_usage.get("nvidia.com/gpu") == 2


def test_a_template_cannot_set_the_operators_annotation() -> None:
    document = {**template(), "metadata": {"annotations": {ADMITTED: DEEP, "a": "b"}}}
    manifest = pod_manifest(job(roles=ALONE), document, create(), [], PodConfig())
    assert manifest["metadata"]["annotations"] == {"a": "b"}


# ---- which admissions a pod can record


def test_a_later_admission_is_recorded_by_its_pod_as_well() -> None:
    one = job(roles=ALONE)
    first = admitted_status(one, ADMISSION)
    left = transitions.requeue(
        transitions.evict(first, "Preempted", "for b", 1795255300.0), 1795255310.0, Timeouts(), [], 0.0
    )
    waits = one.model_copy(update={"status": left})
    again = transitions.admit(left, (RolePlacement("trainer", "g", (("n2", 1),)),), 1795255320.5)
    admission = admission_record(waits, again)
    assert admission is not None
    assert (admission.attempt, admission.node, admission.flavor, admission.at) == (1, "n2", "g", 1795255320.5)
    assert admitted_status(waits, admission) == again


def test_an_admission_that_a_record_cannot_hold_is_written_first() -> None:
    one = job(roles=ALONE)
    status = admitted_status(one, ADMISSION)
    assert admission_record(one, status) == ADMISSION
    assert admission_record(one, status.model_copy(update={"restarts": 1})) is None
    hold = spec.NominationStatus(placement=status.placement, victims=[], expires_at=2e9)
    held = one.model_copy(update={"status": one.status.model_copy(update={"nomination": hold})})
    assert admission_record(held, status) is None
    two = transitions.admit(one.status, (RolePlacement("trainer", "f", (("n1", 2),)),), 1795255210.25)
    assert admission_record(one, two) is None


# ---- the key


class Secrets(Cluster):
    """Serves the Secret of the key: `codes` in turn, the last one repeatedly."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.lists.set()

    async def answer(self, request: Any) -> Any:
        if "/secrets" not in request.path:
            return await super().answer(request)
        self.calls.append(f"{request.method} {request.path}")
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if code != 200:
            return web.json_response({"code": code, "reason": "NotFound" if code == 404 else ""}, status=code)
        return web.json_response({"metadata": {}, "data": {"key": base64.b64encode(SEAL.key).decode()}})


@pytest.mark.parametrize("codes", [(200,), (404, 200), (503, 200), (403, 200)])
def test_a_leader_loads_the_key_first(codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_operator.__main__._KEY_TIMEOUTS_S", (LONG_S, LONG_S))
    server = Secrets(*codes)

    async def play(api: AsyncKubeClient) -> None:
        (one, _, _), stop = operator(api), asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await until(lambda: one._leader.term is not None)
        assert one._signer is not None
        assert one._signer.key == SEAL.key
        stop.set()
        await running

    serve(server, play)


@pytest.mark.parametrize("code", [403, 500])
def test_without_the_key_statuses_are_written_first_after_a_timeout_with_a_log_line(
    code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_operator.__main__._KEY_TIMEOUTS_S", (0.1, 0.6))
    server = Secrets(code)

    async def play(api: AsyncKubeClient) -> None:
        (one, _, _), stop = operator(api), asyncio.Event()
        running, began = asyncio.create_task(one.run(stop)), asyncio.get_running_loop().time()
        await until(lambda: one._leader.term is not None)
        assert one._signer is None
        assert "admissions are written before pods" in caplog.text
        assert code == 403 or asyncio.get_running_loop().time() - began >= 0.6
        stop.set()
        await running

    serve(server, play)


def test_while_pods_have_records_the_leader_waits_for_the_key() -> None:
    async def play(api: AsyncKubeClient) -> None:
        one, _, _ = operator(api)
        forbidden, nobody = ApiError(403, "Forbidden", ""), ClusterError("no answer")
        assert [one._key_timeout_s(error) for error in (forbidden, ApiError(500, "", ""), nobody)] == [3.0, 60.0, inf]
        one._cache.jobs.on_upsert(single_pod_job())
        one._cache.pods.on_upsert(pod_with_record())
        assert one._key_timeout_s(forbidden) == 60.0

    serve(Server(), play)


def test_a_leader_that_continues_needs_no_new_key() -> None:
    """An API server that has just started may reject it for a moment."""
    server = Secrets(200)

    async def play(api: AsyncKubeClient) -> None:
        (one, election, _), stop = operator(api), asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await until(lambda: one._leader.term is not None)
        seal, term = one._signer, one._leader.term
        server.codes = [403]
        one._fence.enter(None)
        await until(lambda: one._leader.term is not term)
        one._fence.enter(election.acquired)
        await until(lambda: one._leader.term is not None)
        assert one._signer is seal
        stop.set()
        await running

    serve(server, play)


def test_losing_the_lease_while_loading_the_key_returns_to_standby() -> None:
    server = Secrets(503)

    async def play(api: AsyncKubeClient) -> None:
        (one, election, _), stop = operator(api), asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await until(lambda: server.holder == "me" and any("/secrets" in call for call in server.calls))
        server.take({"holderIdentity": "other", "leaseDurationSeconds": 60, "acquireTime": "x"})
        await until(lambda: not election.may_write())
        turns = 0
        for _ in range(20):
            await asyncio.sleep(0.01)
            turns += 1
        assert turns == 20
        assert one._leader.term is None
        server.codes = [200]
        server.take({"leaseDurationSeconds": 1})
        await until(lambda: one._leader.term is not None)
        stop.set()
        await running

    serve(server, play)
