"""A single-pod gang is admitted by its pod, which records the admission; its status follows."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, serve
from tests.operator.objects import job_document, pod_seen, read
from tests.operator.single_pod import POD, STATUS, new_harness, single_pod_job, submit_recorded, watched_pod

from muster.cluster import ObjectWrites
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawTrainingJob


def view(phase: str = "Running", **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}], **fields}


def test_the_pod_is_the_only_write_until_it_is_bound() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 0)
        assert harness.phase("llama") == "Admitted"
        assert harness.pending_events() == [("llama", "Admitted")]
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_upsert(watched_pod(server, pod, phase="Pending"))
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 1)
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert written["phase"] == "Admitted"
        assert written["placement"][0]["nodes"][0]["node"] == pod.node
        assert written["observedGeneration"] == 1
        assert datetime.fromisoformat(written["submittedAt"]) == datetime.fromisoformat(NOW)
        assert not harness.cache.jobs.lagging()

    serve(server, scenario)


def test_one_status_records_admission_and_start() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_upsert(watched_pod(server, pod, **view()))
        await harness.run_cycle()
        assert server.count(STATUS) == 1
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert (written["phase"], written["podsReady"]) == ("Running", 1)
        assert written["placement"][0]["nodes"][0]["node"] == pod.node

    serve(server, scenario)


def test_the_status_of_a_larger_gang_is_written_first() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api, jobs=0)
        harness.submit("llama", 5)
        await harness.run_cycle()
        assert server.calls[0] == STATUS
        assert server.count(POD) == 2
        assert all("annotations" not in body.get("metadata", {}) or not body["metadata"]["annotations"]
                   for body in server.bodies)  # fmt: skip

    serve(server, scenario)


def test_without_the_key_the_status_is_written_first() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        harness.term.signer = None
        await harness.run_cycle()
        assert server.calls[0] == STATUS
        assert server.count(POD) == 1

    serve(server, scenario)


def test_in_a_burst_statuses_wait_a_minute_for_their_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api, jobs=0)
        now = harness.cache._clock()
        monkeypatch.setattr("muster_operator.write_queue.time.time", lambda: now)
        for number in range(70):
            submit_recorded(harness, f"burst-{number}", number, now - (59.0 if number < 65 else 1.0))
        assert len(harness.cache.jobs.lagging()) == 70
        harness.cache.observe()
        patches = "PATCH /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/"
        assert len(harness.queue.next_deferred()) == 0
        now += 1.5
        assert len(harness.queue.next_deferred()) == 64, "at most 64 at once"
        await harness.run_cycle()
        assert server.count(patches) == 70, "the others are written, fewer than 64 are left"

    serve(server, scenario)


def test_it_stays_admitted_without_its_pod_and_its_status_precedes_the_next_pod() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_delete(watched_pod(server, pod))
        await harness.run_cycle()
        writes = [call for call in server.calls if call.startswith((POD, STATUS))]
        assert [call.split()[0] for call in writes] == ["POST", "PATCH", "POST"]
        assert harness.phase("llama") == "Admitted"

    serve(server, scenario)


def test_a_job_suspended_in_between_releases_its_capacity_and_resumes_in_a_new_attempt() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        harness.cache.jobs.on_upsert(single_pod_job(server.version + 1, 2, suspend=True))
        await harness.run_cycle()
        written = server.bodies[server.calls.index(STATUS)]["status"]
        assert (written["phase"], written["attempt"]) == ("Suspended", 1)
        assert server.count("DELETE /api/v1/namespaces/team/pods/llama-") == 1

    serve(server, scenario)


@pytest.mark.parametrize("code", [403, 422, 500])
def test_a_job_whose_pod_is_rejected_is_not_admitted_and_delays_no_other(code: int) -> None:
    server = Server([("POST", r"/pods/llama-trainer", code)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        harness.submit("good", 9)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert server.count("PATCH /apis/muster.dev/v1alpha1/queues/research/status") == 1, "later phases as well"
        for _ in range(3):
            harness.term.engine.recheck(["uid-llama"])
            await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS)) == (1, 0), "retried after a pause; takes no capacity"
        assert harness.phase("llama") == "Pending"
        server.refuses.clear()
        harness.now += 60.0
        harness.term.engine.recheck(["uid-llama"])
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert (server.count(POD), server.count(STATUS)) == (2, 0)

    serve(server, scenario)


class NameTaken(Server):
    """Another pod has the name."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.calls.append(POD)
            self.bodies.append({})
            return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
        return await super().answer(request)


def test_if_another_pod_has_its_name_the_status_is_written_first_after_a_pause() -> None:
    """That attempt then fails eventually, and the next one has other names."""
    server = NameTaken()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
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

    serve(server, scenario)


class AnnotationsRemoved(Server):
    """A webhook removes annotations from pods."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        answer = await super().answer(request)
        if request.method == "POST" and request.path.endswith("/pods") and isinstance(answer, web.Response):
            document = json.loads(answer.text or "")
            del document["metadata"]["annotations"]
            return web.json_response(document)
        return answer


def test_if_the_annotation_is_removed_the_status_is_written_first_next_time() -> None:
    server = AnnotationsRemoved()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        await harness.run_cycle()
        assert (server.count(POD), server.count(STATUS), server.count("DELETE")) == (1, 0, 1)
        (pod,) = harness.cache.observe().pods["uid-llama"]
        harness.cache.pods.on_delete(pod_seen(pod.name, server.version + 1, owner="uid-llama"))
        harness.now += 60.0
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert (server.count(POD), server.count(STATUS), server.count("DELETE")) == (2, 1, 1)

    serve(server, scenario)


def test_after_four_failed_tries_the_status_is_written_first() -> None:
    """Then its start timeout counts."""
    server = Server([("POST", r"/pods/llama-trainer", 503)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
        for _ in range(4):
            await harness.run_cycle()
            assert server.count(STATUS) == 0
            harness.now += 60.0
            harness.term.engine.recheck(["uid-llama"])
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert server.count(STATUS) == 1

    serve(server, scenario)


def test_lagging_statuses_get_half_of_the_budget_in_a_long_burst() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api, jobs=0)
        now = harness.cache._clock()
        for number in range(80):
            submit_recorded(harness, f"job{number}", number, now - 600.0)
        others = [ObjectWrites(f"other{number}", ()) for number in range(30)]
        harness.queue._deferred.update((one.job_uid, one) for one in others)
        harness.queue.throttle.take_budget = lambda limit: 10  # type: ignore[method-assign]
        piece = harness.queue.next_deferred()
        assert [one.job_uid.startswith("other") for one in piece] == [False] * 5 + [True] * 5

    serve(server, scenario)


class EditedMeanwhile(Server):
    """While the pod is created, the job is edited into a form that cannot be read."""

    harness: OperatorHarness

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/pods"):
            broken = job_document("llama", 50, roles="none")
            broken["metadata"]["generation"] = 2
            self.harness.cache.jobs.on_upsert(read(RawTrainingJob, broken))
        return await super().answer(request)


def test_a_pod_whose_job_became_invalid_during_creation_is_deleted() -> None:
    server = EditedMeanwhile()

    async def scenario(api: AsyncKubeClient) -> None:
        server.harness = harness = new_harness(api)
        await harness.run_cycle()
        assert server.count("DELETE /api/v1/namespaces/team/pods/llama-") == 1
        assert not harness.cache.jobs.lagging()

    serve(server, scenario)


def test_a_job_pending_for_a_cycle_is_admitted_by_its_pod_with_its_generation() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api)
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

    serve(server, scenario)


def test_rejected_statuses_block_no_other_writes() -> None:
    server = Server([("PATCH", r"/trainingjobs/bad\d+/status", 422)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = new_harness(api, jobs=0)
        now = harness.cache._clock()
        for number in range(80):
            submit_recorded(harness, f"{'bad' if number < 66 else 'good'}{number}", number, now - 600.0)
        for _ in range(4):
            await harness.run_cycle()
        assert {one.job.metadata.name[:3] for one in harness.cache.jobs.lagging()} == {"bad"}

    serve(server, scenario)
