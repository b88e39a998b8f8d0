"""A write without an answer is resolved before the next decision."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, serving
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, job_seen, name_of, template

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient, Fenced
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.uncertain_writes import UncertainWrites

POD = f"/api/v1/namespaces/team/pods/{name_of(attempt=1)}"
JOB = "/apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama"


class Server:
    """An API server with one object. It executes writes; the first answers are lost."""

    def __init__(self, found: dict[str, Any] | None = None, *, lost: int = 0, code: int = 0) -> None:
        self.found = found
        self.lost = lost
        self.code = code  # of the answer to every write; 0: normal
        self.calls: list[str] = []
        self.written = False
        self.may_write = True
        self.now = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.method)
        wrote, self.written = self.written, self.written or request.method != "GET"
        if self.lost > 0:
            self.lost -= 1
            assert request.transport is not None
            request.transport.abort()
        if request.method == "GET":
            name = POD.rpartition("/")[2] if request.path.endswith("/pods") else "llama"
            assert request.query == {"fieldSelector": f"metadata.name={name}"}
            return web.json_response({"items": [] if self.found is None else [self.found]})
        code = self.code or (409 if wrote else 200)
        return web.json_response({"code": code, "reason": "AlreadyExists"}, status=code)


Scenario = Callable[[UncertainWrites, AsyncKubeClient, ClusterCache], Awaitable[None]]


def run_scenario(server: Server, scenario: Scenario) -> None:
    async def with_writes(api: AsyncKubeClient) -> None:
        cache, _ = new_cache()
        await scenario(UncertainWrites(api, cache, lambda: server.now), api, cache)

    asyncio.run(serving(server, with_writes, lambda: server.may_write))


def pod_document() -> dict[str, Any]:
    labels = {"muster.dev/role": "trainer", "muster.dev/index": "0", "muster.dev/attempt": "1"}
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": "uid-llama", "controller": True}
    owner["name"] = "llama"
    name = POD.rpartition("/")[2]
    meta = {"name": name, "namespace": "team", "uid": "uid-p", "resourceVersion": "9", "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [owner]}, **template(), "status": {"phase": "Pending"}}


def test_an_unanswered_pod_creation_is_repeated_and_read_before_the_next_decision() -> None:
    server = Server(pod_document(), lost=1)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        await uncertain_writes.resolve_all()
        cache.jobs.on_upsert(job_seen())
        assert cache.pods.get("uid-llama", POD.rpartition("/")[2]) is not None
        await uncertain_writes.resolve_all()

    run_scenario(server, scenario)
    assert server.calls == ["POST", "POST", "GET"]


def test_an_unanswered_status_write_is_read_before_the_next_decision() -> None:
    server = Server({**job_document(version=7), "status": {"attempt": 2}}, lost=1)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(JOB, lambda: api.patch(f"{JOB}/status", b"{}"))
        await uncertain_writes.resolve_all()
        (job,) = cache.observe().jobs
        assert (job.status.attempt, job.metadata.resource_version) == (2, "7")

    run_scenario(server, scenario)
    assert server.calls == ["PATCH", "PATCH", "GET"]


@pytest.mark.parametrize("code", [409, 500])
def test_after_a_conflict_or_a_5xx_the_object_is_read(code: int) -> None:
    server = Server(job_document(version=7), code=code)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ApiError):
            await uncertain_writes.perform(JOB, lambda: api.patch(f"{JOB}/status", b"{}"))
        await uncertain_writes.resolve_all()
        assert [job.metadata.resource_version for job in cache.observe().jobs] == ["7"]

    run_scenario(server, scenario)
    assert server.calls == ["PATCH", "GET"]


def test_uncertain_writes_are_kept_until_there_is_an_answer() -> None:
    server = Server(lost=4)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        for _ in range(3):
            with pytest.raises(ClusterError):
                await uncertain_writes.resolve_all()
        await uncertain_writes.resolve_all()  # the pod was deleted meanwhile
        await uncertain_writes.resolve_all()

    run_scenario(server, scenario)
    assert server.calls == ["POST"] * 5 + ["GET"]


def test_after_the_request_lifetime_the_object_is_only_read() -> None:
    server = Server(pod_document(), lost=1)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        server.now = 70.0
        await uncertain_writes.resolve_all()

    run_scenario(server, scenario)
    assert server.calls == ["POST", "GET"]


def test_an_obsolete_write_is_only_read() -> None:
    server = Server(lost=1)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        cache.jobs.on_upsert(job_seen())
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(
                POD,
                lambda: api.post("/api/v1/namespaces/team/pods", b"{}"),
                lambda: cache.jobs.get("uid-llama") is not None,
            )
        cache.jobs.on_delete(job_seen(version=2))
        await uncertain_writes.resolve_all()

    run_scenario(server, scenario)
    assert server.calls == ["POST", "GET"]


def test_a_leader_decides_nothing_while_writes_are_uncertain() -> None:
    server = Server(lost=3)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        harness = OperatorHarness(api, uncertain_writes=uncertain_writes)
        leader = harness.leader
        leading = asyncio.create_task(leader.run_term())
        async with asyncio.timeout(60):
            while leader.term is harness.term or leader.term is None or leader.term.last_cycle is None:
                assert not leading.done()
                await asyncio.sleep(0.01)
        assert server.calls[:5] == [*["POST"] * 4, "GET"], "then the writes of the cycle"
        leading.cancel()

    run_scenario(server, scenario)


def test_fenced_writes_and_those_of_an_earlier_term_are_not_uncertain() -> None:
    server = Server(lost=1)

    async def scenario(uncertain_writes: UncertainWrites, api: AsyncKubeClient, cache: ClusterCache) -> None:
        with pytest.raises(ClusterError):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        uncertain_writes.clear()
        server.may_write = False
        with pytest.raises(Fenced):
            await uncertain_writes.perform(POD, lambda: api.post("/api/v1/namespaces/team/pods", b"{}"))
        await uncertain_writes.resolve_all()

    run_scenario(server, scenario)
    assert server.calls == ["POST"]
