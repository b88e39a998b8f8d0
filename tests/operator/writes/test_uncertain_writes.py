"""A write without an answer is resolved in the background; meanwhile only other jobs are processed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, admitted, serve, serving
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, job_seen, name_of, template

from muster.errors import ClusterError
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import ApiError, AsyncKubeClient, Fenced, NoAnswer
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.writes.uncertain import UncertainWrites, WriteTarget

UID = "uid-llama"
POD = f"/api/v1/namespaces/team/pods/{name_of(attempt=1)}"
JOB = "/apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama"


class OneObject:
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


class Writes:
    """Writes of one pod and one status."""

    def __init__(self, api: AsyncKubeClient, clock: Callable[[], float]) -> None:
        self.api = api
        self.cache: ClusterCache = new_cache()[0]
        self.uncertain = UncertainWrites(api, self.cache, lambda: None, clock, settle_s=0.05)

    async def create_pod(self, target: WriteTarget = WriteTarget(UID, POD)) -> None:  # noqa: B008 - it is a value
        await self.uncertain.perform(target, lambda: self.api.post("/api/v1/namespaces/team/pods", b"{}"))

    async def write_status(self, target: WriteTarget = WriteTarget(UID, JOB)) -> None:  # noqa: B008 - likewise
        await self.uncertain.perform(target, lambda: self.api.patch(f"{JOB}/status", b"{}"))

    async def settled(self) -> None:
        """Wait until every outcome is known."""
        async with asyncio.timeout(60):
            while self.uncertain.concerns(UID):  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)


def play(server: OneObject, scenario: Callable[[Writes], Awaitable[None]]) -> None:
    async def with_writes(api: AsyncKubeClient) -> None:
        await scenario(Writes(api, lambda: server.now))

    asyncio.run(serving(server, with_writes, lambda: server.may_write))


def pod_document() -> dict[str, Any]:
    labels = {"muster.dev/role": "trainer", "muster.dev/index": "0", "muster.dev/attempt": "1"}
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": UID, "controller": True}
    owner["name"] = "llama"
    name = POD.rpartition("/")[2]
    meta = {"name": name, "namespace": "team", "uid": "uid-p", "resourceVersion": "9", "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [owner]}, **template(), "status": {"phase": "Pending"}}


# ---- finding out the outcome


def test_an_unanswered_pod_creation_is_repeated_and_read() -> None:
    server = OneObject(pod_document(), lost=1)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.create_pod()
        assert writes.uncertain.concerns(UID)
        await writes.settled()
        writes.cache.jobs.on_upsert(job_seen())
        assert writes.cache.pods.get(UID, POD.rpartition("/")[2]) is not None
        assert not writes.uncertain.concerns(UID)
        assert writes.uncertain.take_settled_jobs() == {UID}
        assert writes.uncertain.take_settled_jobs() == set()

    play(server, scenario)
    assert server.calls == ["POST", "POST", "GET"]


def test_an_unanswered_status_write_is_repeated_and_read() -> None:
    server = OneObject({**job_document(version=7), "status": {"attempt": 2}}, lost=1)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.write_status()
        await writes.settled()
        (job,) = training_jobs(writes.cache.observe().workloads)
        assert (job.status.attempt, job.metadata.resource_version) == (2, "7")

    play(server, scenario)
    assert server.calls == ["PATCH", "PATCH", "GET"]


@pytest.mark.parametrize("code", [409, 500])
def test_after_a_conflict_or_a_5xx_the_object_is_read(code: int) -> None:
    server = OneObject(job_document(version=7), code=code)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(ApiError):
            await writes.write_status()
        await writes.settled()
        assert [job.metadata.resource_version for job in training_jobs(writes.cache.observe().workloads)] == ["7"]

    play(server, scenario)
    assert server.calls == ["PATCH", "GET"]


def test_uncertain_writes_are_kept_until_there_is_an_answer() -> None:
    server = OneObject(lost=4)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.create_pod()
        await writes.settled()  # the pod was deleted meanwhile

    play(server, scenario)
    assert server.calls == ["POST"] * 5 + ["GET"]


def test_after_the_request_lifetime_the_object_is_only_read() -> None:
    server = OneObject(pod_document(), lost=1)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.create_pod()
        server.now = 70.0
        await writes.settled()

    play(server, scenario)
    assert server.calls == ["POST", "GET"]


def test_an_obsolete_write_is_only_read() -> None:
    server = OneObject(lost=1)

    async def scenario(writes: Writes) -> None:
        jobs = writes.cache.jobs
        jobs.on_upsert(job_seen())
        with pytest.raises(NoAnswer):
            await writes.create_pod(WriteTarget(UID, POD, still_wanted=lambda: jobs.get(UID) is not None))
        jobs.on_delete(job_seen(version=2))
        await writes.settled()

    play(server, scenario)
    assert server.calls == ["POST", "GET"]


def test_fenced_writes_and_those_of_an_earlier_term_are_not_uncertain() -> None:
    server = OneObject(lost=1)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.create_pod()
        writes.uncertain.clear()
        server.may_write = False
        with pytest.raises(Fenced):
            await writes.create_pod()
        assert not writes.uncertain.concerns(UID)

    play(server, scenario)
    assert server.calls == ["POST"]


def test_a_status_that_changes_no_capacity_needs_only_its_guard() -> None:
    server = OneObject(lost=1)

    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.write_status(WriteTarget(UID, JOB, "no job"))
        assert not writes.uncertain.concerns(UID)

    play(server, scenario)


# ---- what is decided meanwhile


def serve_lossy(lost: str, scenario: Callable[[OperatorHarness, Server], Awaitable[None]]) -> None:
    server = Server(lost=lost)

    async def with_harness(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.uncertain.settle_s = 0.05
        await scenario(harness, server)

    serve(server, with_harness)


def test_an_unanswered_admission_delays_no_other_job_and_keeps_its_capacity() -> None:
    async def scenario(harness: OperatorHarness, server: Server) -> None:
        harness.submit("lost", 5)
        await harness.run_cycle()
        harness.submit("good", 6)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert harness.phase("lost") == "Admitted", "assumed, so that its nodes are given to no other"
        assert server.count("POST /api/v1/namespaces/team/pods/lost-") == 0
        assert server.count("POST /api/v1/namespaces/team/pods/good-") == 2
        harness.uncertain.clear()
        assert harness.phase("lost") == "Pending"

    serve_lossy("PUT .*/trainingjobs/lost/status", scenario)


def test_an_admission_without_an_answer_leaves_as_much_to_others_as_one_with_an_answer() -> None:
    admitted_jobs: dict[str, list[str]] = {}

    async def scenario(harness: OperatorHarness, server: Server) -> None:
        harness.submit("lost", 5)
        await harness.run_cycle()
        names = [f"next{number}" for number in range(20)]
        for number, name in enumerate(names):
            harness.submit(name, 10 + number)
        await harness.run_cycle()
        admitted_jobs[server.lost] = [name for name in names if harness.phase(name) == "Admitted"]

    for lost in ("", "PUT .*/trainingjobs/lost/status"):
        serve_lossy(lost, scenario)
    expected, found = admitted_jobs.values()
    assert found == expected != []


def test_an_unanswered_pod_creation_delays_no_other_job_nor_a_release() -> None:
    async def scenario(harness: OperatorHarness, server: Server) -> None:
        harness.submit("lost", 5, admitted())
        await harness.run_cycle()
        harness.submit("good", 6)
        await harness.run_cycle()
        assert harness.phase("good") == "Admitted"
        assert harness.uncertain.concerns("uid-lost")
        harness.submit("lost", 7, admitted(), suspend=True)
        await harness.run_cycle()
        assert server.count("PUT /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/lost/status") == 0
        harness.submit("later", 8)
        pause_s = await harness.run_cycle()
        assert (harness.phase("later"), pause_s > 0) == ("Pending", True), "a decision needs the job: all wait"
        server.lost = ""
        async with asyncio.timeout(60):
            while harness.uncertain.concerns("uid-lost"):  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
        await harness.run_cycle()
        assert server.count("PUT /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/lost/status") == 1

    serve_lossy("POST .*/pods/lost-", scenario)


def test_an_unanswered_nomination_or_eviction_stops_all_decisions() -> None:
    async def scenario(writes: Writes) -> None:
        with pytest.raises(NoAnswer):
            await writes.write_status(WriteTarget(UID, JOB, "several jobs"))
        with pytest.raises(ClusterError):
            await writes.uncertain.settle()

    play(OneObject(lost=1000), scenario)


def test_many_unanswered_writes_stop_all_decisions() -> None:
    async def scenario(writes: Writes) -> None:
        for number in range(9):
            await writes.uncertain.settle()
            with pytest.raises(NoAnswer):
                await writes.create_pod(WriteTarget(f"uid-{number}", f"/api/v1/namespaces/team/pods/{number}"))
        with pytest.raises(ClusterError):
            await writes.uncertain.settle()

    play(OneObject(lost=1000), scenario)


def test_a_leader_decides_nothing_while_such_writes_are_uncertain() -> None:
    async def scenario(harness: OperatorHarness, server: Server) -> None:
        with pytest.raises(NoAnswer):
            await harness.uncertain.perform(
                WriteTarget(UID, POD, "several jobs"),
                lambda: harness.queue.api.post("/api/v1/namespaces/team/pods", b'{"metadata": {"name": "lost-"}}'),
            )
        cycles = harness.metrics.cycles._value
        leading = asyncio.create_task(harness.leader.run_term())
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert cycles.get() == 0
        server.lost = ""
        async with asyncio.timeout(60):
            while cycles.get() == 0:  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
        leading.cancel()

    serve_lossy("POST .*/pods/lost-", scenario)


class StoredJob(Server):
    """An API server with one job, whose statuses it stores. `executes`: also those that it does not answer."""

    def __init__(self, lost: str, *, executes: bool) -> None:
        super().__init__(lost=lost)
        self.job = job_document("lost", 5)
        self.executes = executes

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"items": [self.job]})
        if request.path.endswith("/trainingjobs/lost/status"):
            body, meta = await request.json(), self.job["metadata"]
            if body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
            if self.executes or not self.lost:
                meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
                self.job["status"] = {**self.job.get("status", {}), **body["status"]}
            if not self.lost:
                return web.json_response({"metadata": meta})
        return await super().answer(request)


@pytest.mark.parametrize("executes", [True, False])
def test_an_admission_without_an_answer_is_recorded_once_its_outcome_is_known(executes: bool) -> None:
    server = StoredJob("PUT .*/trainingjobs/lost/status", executes=executes)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("lost", 5)
        await harness.run_cycle()
        assert harness.pending_events() == []
        server.lost = ""
        async with asyncio.timeout(60):
            while harness.uncertain.concerns("uid-lost"):  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
        for _ in range(2):
            await harness.run_cycle()
        assert harness.phase("lost") == "Admitted"
        assert harness.pending_events() == [("lost", "Admitted")]
        registry = harness.metrics.registry
        assert registry.get_sample_value("muster_admissions_total", {"queue": "research"}) == 1.0

    serve(server, scenario)
