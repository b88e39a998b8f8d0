"""Statuses that the API server refuses for good: no loop, no eviction for nothing, and the reason is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, admitted, serve, until
from tests.operator.caches import relist
from tests.operator.objects import job_document, node_seen, pod_seen, read, terminated

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import V1PriorityClass
from muster.workload.conditions import find_condition

Json = dict[str, Any]
CYCLES = 12  # more than a loop needs to show


class Policy(Server):
    """An API server with an admission policy: it refuses the statuses of jobs (by name) for which `refused` is true."""

    def __init__(self, refused: Callable[[str, Json], bool]) -> None:
        super().__init__()
        self.refused = refused
        self.refuses_dry_runs = True
        self.dry_runs = 0
        self.tried: list[str] = []  # jobs whose status was to be written, in order
        self.written: list[tuple[str, Json]] = []  # statuses that were accepted

    async def answer(self, request: web.Request) -> web.StreamResponse:
        *_, name, last = request.path.split("/")
        if request.method not in ("PUT", "PATCH") or last != "status" or "/trainingjobs/" not in request.path:
            return await super().answer(request)
        status = (await request.json())["status"]
        dry_run = "dryRun" in request.query
        self.dry_runs += dry_run
        if not dry_run:
            self.tried.append(name)
        if self.refused(name, status) and (self.refuses_dry_runs or not dry_run):
            refusal = {"code": 422, "reason": "Invalid", "message": f"{name} is protected"}
            return web.json_response(refusal, status=422)
        if not dry_run:
            self.written.append((name, status))
        return await super().answer(request)


def is_eviction(status: Json) -> bool:
    return any(one["type"] == "Evicted" and one["status"] == "True" for one in status.get("conditions", ()))


def set_up(harness: OperatorHarness) -> list[Json]:
    """Jobs a on n1 and b on n2, each with a running pod on all GPUs; the roles of a job that needs both nodes."""
    priority = {"metadata": {"name": "high", "resourceVersion": "1"}, "value": 100}
    harness.cache.priority_classes.on_upsert(read(V1PriorityClass, priority))
    (role,) = job_document()["spec"]["roles"]
    for number, (name, node) in enumerate((("a", "n1"), ("b", "n2"))):
        place = {"role": "trainer", "flavor": "f", "nodes": [{"node": node, "indexes": "0-7"}]}
        status = {**admitted(8), "placement": [place], "admittedAt": f"2026-11-21T10:00:0{number}Z"}
        harness.submit(name, 5 + number, status, roles=[{**role, "replicas": 8}])
        for index in range(8):
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            pod = pod_seen("", 20 + 10 * number + index, node=node, owner=f"uid-{name}", slot=(index, 0), **ready)
            harness.cache.pods.on_upsert(pod)
    return [{**role, "replicas": 16}]


def note(harness: OperatorHarness, name: str, reason: str) -> str:
    """The note of the only pending Event of a job for this reason."""
    events = [one.manifest for one in harness.recorder.pending()]
    (found,) = [one for one in events if (one["regarding"]["name"], one["reason"]) == (name, reason)]
    return str(found["note"])


def message(harness: OperatorHarness, name: str) -> tuple[str, str]:
    """Why a job waits."""
    known = harness.cache.jobs.get(f"uid-{name}")
    assert known is not None
    condition = find_condition(known.job.status, "Admitted")
    assert condition is not None
    return condition.reason, condition.message


def is_protected(name: str, status: Json) -> bool:
    return name == "b" and is_eviction(status)


async def cycles(harness: OperatorHarness, count: int = CYCLES) -> None:
    for _ in range(count):
        await harness.run_cycle()


def test_a_refused_eviction_is_not_tried_again_and_its_other_victims_keep_their_place() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        await cycles(harness)
        assert sorted(server.tried) == ["a", "a", "b", "p", "p"], "a: evicted and revoked; p: nominated and withdrawn"
        assert (server.count("DELETE"), harness.phase("a")) == (0, "Running")
        assert harness.pending_events() == [("b", "StatusWriteFailed"), ("p", "Nominated")]
        assert note(harness, "b", "StatusWriteFailed") == (
            "the API server refuses its eviction for team/p: b is protected"
        )
        reason, text = message(harness, "p")
        assert (reason, text.rpartition("; ")[2]) == (
            "InsufficientResources", "team/b cannot be evicted: b is protected",
        )  # fmt: skip

    serve(server, scenario)


def test_no_job_is_evicted_for_nothing_although_the_leader_changes_before_the_next_cycle() -> None:
    """The next leader does not know that an eviction was refused."""
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        while "b" not in server.tried:
            await harness.run_cycle()
        assert is_eviction(server.written[-1][1]), "a is marked"
        harness.change_leader()
        await cycles(harness)
        assert (server.count("DELETE"), harness.phase("a")) == (0, "Running")
        assert server.tried.count("b") == 2

    serve(server, scenario)


def test_dry_runs_of_refused_statuses_end_with_the_term() -> None:
    """Another operator may lead then, and make its own."""
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.queue.refused.min_invalid_pause_s = 0.01
        roles = set_up(harness)
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        leading = asyncio.create_task(harness.leader.run_term())
        await until(lambda: server.dry_runs > 0)
        rejected = list(harness.queue.refused._entries.values())
        leading.cancel()
        await until(lambda: all(one.task is not None and one.task.done() for one in rejected))
        assert rejected
        assert not harness.queue.refused._entries

    serve(server, scenario)


def test_another_job_is_evicted_in_place_of_one_whose_eviction_is_refused() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        (role,) = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=[{**role, "replicas": 8}], priorityClassName="high")
        await cycles(harness)
        assert server.tried.count("b") == 1
        assert {name for name, status in server.written if is_eviction(status)} == {"a"}
        assert server.count("DELETE") == 8
        assert message(harness, "p")[0] == "WaitingForPreemption"

    serve(server, scenario)


def test_a_job_is_evicted_once_a_dry_run_of_its_eviction_is_accepted() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.queue.refused.min_invalid_pause_s = 0.01
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        await cycles(harness)
        await until(lambda: server.dry_runs >= 3)
        assert server.tried.count("b") == 1, "a refused dry run does not lead to another write"
        server.refused = lambda name, status: False
        await until(lambda: not harness.queue.refused.observed())
        assert harness.wakeup.is_set()
        await cycles(harness, 3)
        assert server.count("DELETE") == 16

    serve(server, scenario)


def test_a_status_that_is_refused_although_its_dry_run_is_accepted_is_tried_after_growing_pauses() -> None:
    server = Policy(is_protected)
    server.refuses_dry_runs = False

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.queue.refused.min_invalid_pause_s = 0.01
        roles = set_up(harness)
        await cycles(harness, 2)
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        pauses: list[float] = []
        while len(pauses) < 4:
            await harness.run_cycle()
            backoff = harness.queue.refused._backoffs.get(("uid-b", "Eviction"))
            if backoff is not None and backoff.pause_s not in pauses:
                pauses.append(backoff.pause_s)
            await asyncio.sleep(0.001)
        assert pauses == [0.01, 0.02, 0.04, 0.08]
        assert server.count("DELETE") == 0
        assert harness.pending_events().count(("b", "StatusWriteFailed")) == 1

    serve(server, scenario)


def test_a_job_whose_eviction_is_refused_still_completes() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        await cycles(harness, 3)
        state = {"containerStatuses": [terminated(0)]}
        for index in range(8):
            pod = pod_seen("", 60 + index, node="n2", owner="uid-b", slot=(index, 0), phase="Succeeded", **state)
            harness.cache.pods.on_upsert(pod)
        await cycles(harness, 4)
        assert harness.phase("b") == "Succeeded"
        assert {name for name, status in server.written if is_eviction(status)} == {"a"}, "p needs only a now"
        assert server.count("DELETE") == 8

    serve(server, scenario)


def test_a_refused_nomination_evicts_no_job_and_others_are_admitted() -> None:
    server = Policy(lambda name, status: name == "p" and bool(status.get("nomination")))

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        waiting: Json = {"observedGeneration": 1, "phase": "Pending", "submittedAt": NOW, "conditions": []}
        harness.submit("p", 8, waiting, roles=roles, priorityClassName="high")
        await cycles(harness)
        assert server.tried == ["p", "p"], "one nomination, and why it waits"
        assert message(harness, "p") == ("StatusWriteFailed", "its nomination is refused: p is protected")
        harness.cache.nodes.on_upsert(node_seen("n3", 9))
        harness.submit("other", 10)
        await cycles(harness)
        assert (server.tried.count("p"), harness.phase("other")) == (2, "Admitted")

    serve(server, scenario)


def test_a_job_whose_admission_is_refused_loses_its_nomination_and_evicts_no_job_again() -> None:
    server = Policy(lambda name, status: name == "p" and status.get("phase") == "Admitted")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        roles = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        harness.submit("p", 8, roles=roles, priorityClassName="high")
        await cycles(harness, 2)
        relist(harness.cache.pods, [], 4000)  # the pods of a and b have stopped
        await cycles(harness)
        assert server.count("DELETE") == 16, "a and b were evicted once"
        assert message(harness, "p") == ("StatusWriteFailed", "its admission is refused: p is protected")
        assert server.tried.count("p") <= 4
        assert (harness.phase("a"), harness.phase("b")) == ("Admitted", "Admitted")

    serve(server, scenario)


def test_a_refused_drain_is_tried_again_after_a_pause_and_delays_no_other_job() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        (role,) = set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        taint = {"key": "muster.dev/drain", "effect": "NoSchedule"}
        harness.cache.nodes.on_upsert(node_seen("n2", 9, taints=[taint]))
        harness.cache.nodes.on_upsert(node_seen("n3", 10))
        harness.submit("other", 11, roles=[{**role, "replicas": 8}])
        await cycles(harness)
        assert (server.tried.count("b"), harness.phase("other")) == (1, "Admitted")
        harness.now = 5.0
        await cycles(harness)
        assert server.tried.count("b") == 2
        assert harness.pending_events().count(("b", "StatusWriteFailed")) == 1

    serve(server, scenario)


def test_a_refused_drain_is_tried_again_also_if_the_cycle_takes_longer_than_the_pause() -> None:
    server = Policy(is_protected)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        set_up(harness)
        await cycles(harness, 2)
        server.tried.clear()
        taint = {"key": "muster.dev/drain", "effect": "NoSchedule"}
        harness.cache.nodes.on_upsert(node_seen("n2", 9, taints=[taint]))
        while "b" not in server.tried:
            await harness.run_cycle()
        harness.now = 60.0  # the pause is over before the next cycle begins
        await cycles(harness, 2)
        assert server.tried.count("b") == 2

    serve(server, scenario)


def test_a_job_of_which_every_status_is_refused_is_tried_a_few_times_and_others_are_admitted() -> None:
    server = Policy(lambda name, status: name == "p")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("p", 8)
        harness.submit("other", 9)
        await cycles(harness)
        assert (harness.phase("p"), harness.phase("other")) == ("Pending", "Admitted")
        assert server.tried.count("p") <= 3
        assert harness.pending_events().count(("p", "StatusWriteFailed")) <= 2

    serve(server, scenario)


@pytest.mark.parametrize("kind", ["queues/research", "flavors/f"])
def test_a_queue_or_flavor_whose_status_is_refused_is_tried_after_a_pause_and_delays_no_job(kind: str) -> None:
    server = Server([("PATCH", f"{kind}/status", 422)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        await cycles(harness)
        harness.submit("other", 9)
        await cycles(harness, 3)
        assert harness.phase("other") == "Admitted"
        assert server.count(f"PATCH /apis/muster.dev/v1alpha1/{kind}/status") == 1
        assert harness.term.rejections.failures == 0, "no cycle is delayed because of it"
        harness.now = 5.0
        await cycles(harness, 2)
        assert server.count(f"PATCH /apis/muster.dev/v1alpha1/{kind}/status") == 2

    serve(server, scenario)
