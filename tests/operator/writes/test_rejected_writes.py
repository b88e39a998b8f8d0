"""Rejected writes of one object delay no other object."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, admitted, serve, tried
from tests.operator.caches import relist
from tests.operator.objects import job_document, node_seen, pod_seen, read

from muster.cluster import CreatePod
from muster.engine import CycleResult
from muster.errors import ClusterError
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.async_client import ApiError, AsyncKubeClient, Fenced, NoAnswer, is_server_wide
from muster.kube.objects import V1PriorityClass
from muster.workload.observed import ObservedState
from muster_operator.cache.cached_job import DryRunResult

POD_OF_BAD = r"/pods/bad-"
WAITING: dict[str, Any] = {"observedGeneration": 1, "phase": "Pending", "submittedAt": NOW, "conditions": []}


@pytest.mark.parametrize("code", [403, 409, 422, 500, 503])
@pytest.mark.parametrize(
    "where", [("POST", POD_OF_BAD), ("POST", r"/services/bad-")], ids=["its pods are refused", "its Service is refused"]
)
def test_others_are_admitted_while_writes_of_one_job_are_rejected(where: tuple[str, str], code: int) -> None:
    server = Server([(*where, code)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        harness.submit("good", 6)
        await harness.run_cycle()
        assert (harness.phase("good"), server.count("POST /api/v1/namespaces/team/pods/good-")) == ("Admitted", 2)
        assert harness.term.failures.failures == 0

    serve(server, scenario)


@pytest.mark.parametrize("code", [403, 500])
def test_others_are_admitted_while_a_pod_cannot_be_deleted_with_an_event(code: int) -> None:
    server = Server([("DELETE", POD_OF_BAD, code)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        pod = pod_seen("", 6, node="n1", owner="uid-bad", slot=(0, 7))  # of an earlier attempt
        harness.cache.pods.on_upsert(pod)
        harness.submit("good", 7)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert ("bad", "FailedDelete") in harness.pending_events()
        assert harness.queue.pause_s("uid-bad") > 0

    serve(server, scenario)


def test_a_broken_connection_is_no_rejection_and_a_refused_delete_is_no_refused_pod(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server([("DELETE", POD_OF_BAD, 403)])
    server.lost = "flavors/f/status"

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        harness.cache.pods.on_upsert(pod_seen("", 6, node="n1", owner="uid-bad", slot=(0, 7)))
        await harness.run_cycle()
        lines = [record.message for record in caplog.records if record.name == "muster.operator"]
        assert "pod not deleted" in lines
        assert "write not answered" in lines
        assert not {"pod refused", "write refused"} & set(lines)

    serve(server, scenario)


def test_repeated_failures_of_a_pod_have_one_event_and_a_single_one_none() -> None:
    server = Server([("POST", POD_OF_BAD, 500)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        events, pauses = [], []
        for _ in range(4):
            await harness.run_cycle()
            harness.term.engine.recheck(["uid-bad"])
            events.append(harness.pending_events().count(("bad", "PodRejected")))
            pauses.append(harness.queue.pause_s("uid-bad"))
        assert events == [0, 1, 1, 1]
        assert pauses == sorted(set(pauses)), "they grow"
        server.refuses.clear()
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods/bad-") == 2 + 2 + 1 + 1 + 2, "one pod is enough"
        assert harness.queue.failures("uid-bad") <= 1

    serve(server, scenario)


def test_another_pod_under_the_name_of_a_jobs_pod_is_reported_and_the_jobs_pod_created_once_it_is_gone() -> None:
    server = Server([("POST", "/pods/bad-trainer-0-", 409)], reason="AlreadyExists")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        taken = pod_seen(pod_name("bad", "uid-bad", "trainer", 0, 0), 6, node="n2")
        harness.cache.pods.on_upsert(taken)
        for _ in range(2):
            await harness.run_cycle()
            assert harness.queue.failures("uid-bad") > 0, "it is tried again"
            harness.term.engine.recheck(["uid-bad"])
        (event,) = [one.manifest for one in harness.recorder.pending() if one.manifest["reason"] == "PodRejected"]
        assert taken.metadata.name in event["note"]
        server.refuses.clear()
        taken.metadata.resource_version = "7"
        harness.cache.pods.on_delete(taken)
        await harness.run_cycle()
        assert harness.cache.pods.get("uid-bad", taken.metadata.name) is not None

    serve(server, scenario)


def test_a_pod_that_exists_because_it_was_created_before_is_no_failure() -> None:
    server = Server([("POST", "/pods/bad-trainer-0-", 409)], reason="AlreadyExists")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("bad", 5, admitted())
        name = pod_name("bad", "uid-bad", "trainer", 0, 0)
        write = CreatePod("uid-bad", name, "trainer", 0, 1, 0, "n1", "f", "n1", 30.0)
        harness.cache.pods.on_upsert(pod_seen("", 6, node="n1", owner="uid-bad", slot=(0, 0)))
        deferred: set[str] = set()
        await harness.writer.pods.apply("uid-bad", [write], deferred)
        assert (deferred, harness.queue.failures("uid-bad")) == (set(), 0)

    serve(server, scenario)


def test_a_rejected_status_delays_later_phases_by_one_cycle() -> None:
    """Its capacity may be nominated for another job, which must not use it before the release is written."""
    server = Server([("PUT", "trainingjobs/bad/status", 500)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.leader._retry = lambda term, uids: None  # type: ignore[method-assign]  # its pause does not end meanwhile
        harness.submit("bad", 5, admitted(), cancel=True)
        harness.submit("good", 6)
        await harness.run_cycle()
        assert harness.phase("good") == "Pending"
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"

    serve(server, scenario)


@pytest.mark.parametrize("code", [401, 429])
def test_failed_authentication_and_429_affect_all_objects(code: int) -> None:
    assert is_server_wide(ApiError(code, "x", "y"))
    assert is_server_wide(ClusterError("no connection"))
    assert not is_server_wide(NoAnswer("one request"))
    assert is_server_wide(Fenced("not ours"))
    assert not is_server_wide(ApiError(500, "InternalError", "failed calling webhook"))


def test_backoff_grows_to_a_maximum_and_resets() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        queue, error = harness.queue, ApiError(500, "InternalError", "")
        assert queue.may_retry("a")
        pauses = []
        for _ in range(8):
            queue.record_failure("a", error, set())
            pauses.append(queue.pause_s("a"))
        assert pauses[:3] == [1.0, 2.0, 4.0]
        assert pauses[-1] == pauses[-2] == 30.0
        assert not queue.may_retry("a")
        harness.now = 30.0
        assert queue.may_retry("a")
        queue.reset("a")
        queue.record_failure("a", ApiError(422, "Invalid", ""), set())
        assert queue.pause_s("a") == 5.0

    serve(Server(), scenario)


def test_a_dry_run_that_keeps_failing_is_a_rejection_until_it_succeeds() -> None:
    server = Server([("POST", "/pods$", 500)], says="failed calling webhook: connection refused")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.dry_runs.retry_s = 0.0
        ask = partial(tried, harness, harness.dry_runs)
        assert await ask() == DryRunResult(rejection="failed calling webhook: connection refused")
        server.refuses.clear()
        assert await ask() == DryRunResult()

    serve(server, scenario)


def test_a_deleted_service_is_created_again_before_the_next_attempt() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("llama", 5, admitted())
        await harness.run_cycle()
        relist(harness.cache.pods, [], 4000)  # they are gone
        harness.submit("llama", 5000, {**admitted(), "attempt": 1})
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/services/") == 2
        harness.term.engine.recheck()
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/services/") == 2

    serve(server, scenario)


class SlowReads(Server):
    """An API server that answers reads of pods once `reads` is set."""

    def __init__(self, code: int) -> None:
        super().__init__([("POST", "/pods/bad-", code)])
        self.reads = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/pods"):
            await self.reads.wait()
        return await super().answer(request)


@pytest.mark.parametrize("code", [409, 500])
def test_a_job_whose_pause_ends_before_its_pods_are_read_is_decided_again_after_the_read(code: int) -> None:
    server = SlowReads(code)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        end_pause = harness.leader._retry
        harness.leader._retry = lambda term, uids: None  # type: ignore[method-assign]  # the test ends the pause
        harness.submit("bad", 5, admitted())
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods/bad-") == 2
        server.refuses.clear()
        end_pause(harness.term, ["uid-bad"])
        harness.wakeup.clear()
        server.reads.set()
        async with asyncio.timeout(60):
            while harness.uncertain.concerns("uid-bad"):  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
        assert harness.wakeup.is_set()
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods/bad-") == 4

    serve(server, scenario)


@pytest.mark.parametrize("code", [409, 500])
def test_many_rejected_pods_that_are_still_read_delay_no_other_job(code: int) -> None:
    server = SlowReads(code)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.uncertain.settle_s, harness.uncertain.max_writes = 0.05, 1
        harness.submit("bad", 5, admitted())
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods/bad-") == 2
        harness.submit("good", 6)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert harness.uncertain.concerns("uid-bad")
        harness.uncertain.clear()

    serve(server, scenario)


@pytest.mark.parametrize("status", [WAITING, admitted()], ids=["waiting", "with capacity"])
def test_a_job_that_is_edited_all_the_time_delays_no_other_job(status: dict[str, Any]) -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        server.edited["trainingjobs/edited/"] = 9999  # the newest version is never delivered in time

        async def cycle_after_edit(version: int) -> None:
            harness.submit("edited", version, status, suspend=True)
            await harness.run_cycle()

        edits = "PUT /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/edited/status"
        for version in (10, 11):
            await cycle_after_edit(version)
        assert (server.count(edits), harness.queue.pause_s("uid-edited")) == (2, 1.0)
        harness.submit("good", 12)
        await cycle_after_edit(13)
        assert harness.phase("good") == "Admitted"
        assert server.count(edits) == 2
        harness.now = 1.0
        await cycle_after_edit(14)
        assert (server.count(edits), harness.queue.pause_s("uid-edited")) == (3, 2.0)
        await cycle_after_edit(15)
        harness.now = 3.0
        server.edited.clear()
        await harness.run_cycle()
        assert (server.count(edits), harness.queue.failures("uid-edited")) == (4, 0)

    serve(server, scenario)


def test_a_job_that_is_edited_all_the_time_is_not_preempted_before_another_while_it_is_paused() -> None:
    server = Server()
    (role,) = job_document()["spec"]["roles"]
    roles = [{**role, "replicas": 8}]  # a whole node
    on_n2 = {
        **admitted(8),
        "placement": [{"role": "trainer", "flavor": "f", "nodes": [{"node": "n2", "indexes": "0-7"}]}],
    }

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        priority = {"metadata": {"name": "high", "resourceVersion": "1"}, "value": 100}
        harness.cache.priority_classes.on_upsert(read(V1PriorityClass, priority))
        harness.submit("steady", 5, admitted(8), roles=roles)
        harness.submit("edited", 6, {**on_n2, "admittedAt": "2026-11-21T10:00:05Z"}, roles=roles)  # the newest
        harness.submit("urgent", 7, roles=roles, priorityClassName="high")
        server.edited["trainingjobs/edited/"] = 9999
        edits = "PUT /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/edited/status"
        evicted = []
        for _ in range(4):
            await harness.run_cycle()
            known = harness.cache.jobs.get("uid-steady")
            assert known is not None
            evicted.append(known.job.status.eviction is not None)
        assert (evicted, server.count(edits)) == ([False, False, True, True], 2)

    serve(server, scenario)


class EditedBeforeEachWrite(Server):
    """The owner of the job `edited` edits it before most of the operator's writes. Lists have the newest version."""

    edits = 3
    document: dict[str, Any]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/trainingjobs"):
            self.calls.append("LIST")
            return web.json_response({"items": [self.document]})
        if request.method == "PUT" and "trainingjobs/edited/" in request.path and self.edits > 0:
            self.edits -= 1
            meta = self.document["metadata"]
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
            self.edited["trainingjobs/edited/"] = int(meta["resourceVersion"])
        return await super().answer(request)


@pytest.mark.parametrize("when", ["during decisions", "during writes"])
def test_a_job_is_preempted_although_its_owner_edits_it_all_the_time(when: str) -> None:
    server = EditedBeforeEachWrite()
    (role,) = job_document()["spec"]["roles"]
    roles = [{**role, "replicas": 8}]  # a whole node

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.cache.nodes.on_delete(node_seen("n2", 3))
        priority = {"metadata": {"name": "high", "resourceVersion": "1"}, "value": 100}
        harness.cache.priority_classes.on_upsert(read(V1PriorityClass, priority))
        server.document = {**job_document("edited", 6, roles=roles), "status": admitted(8)}
        harness.submit("edited", 6, admitted(8), roles=roles)
        harness.submit("urgent", 7, roles=roles, priorityClassName="high")
        reconcile = harness.term.engine.reconcile

        def edited_meanwhile(observed: ObservedState) -> CycleResult:
            result = reconcile(observed)
            harness.submit("edited", 8, admitted(8), roles=roles)
            return result

        if when == "during decisions":
            server.edits = 0
            harness.term.engine.reconcile = edited_meanwhile  # type: ignore[method-assign]
        await harness.run_cycle()
        known = harness.cache.jobs.get("uid-edited")
        assert known is not None
        assert known.job.status.reason == "Preempted"

    serve(server, scenario)
