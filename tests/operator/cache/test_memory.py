"""Memory per job is bounded, whatever its pod templates contain."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, serve
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, read

from muster.api.spec.limits import MAX_ROLES_BYTES, MAX_ROLES_VALUES
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster.kube.reflector import Reflector
from muster.kube.resources import TRAINING_JOBS
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.lru_cache import LRUCache

MIB = 2**20


def with_pod(name: str, version: int = 1, **fields: Any) -> RawCustomObject:
    """A job whose pods have these additional fields."""
    document = job_document(name, version)
    document["spec"]["roles"][0]["template"]["spec"] |= fields
    return read(RawCustomObject, document)


def held_mib(act: Callable[[], object]) -> float:
    """Additional memory in use afterwards."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = act()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        del kept
        return (after - before) / MIB
    finally:
        tracemalloc.stop()


def seen_with(count: int, make: Callable[[int], dict[str, Any]]) -> ClusterCache:
    cache, _ = new_cache()
    for number in range(count):
        cache.jobs.on_upsert(with_pod(f"j{number}", number + 1, **make(number)))
    return cache


def test_a_job_with_too_many_values_is_rejected_and_uses_almost_no_memory() -> None:
    cache, _ = new_cache()

    def put() -> ClusterCache:
        for number in range(5):
            cache.jobs.on_upsert(with_pod(f"j{number}", number + 1, odd=[number, [[{}] * 300] * 1000]))
        return cache

    assert held_mib(put) < 1
    assert training_jobs(cache.observe().workloads) == ()
    error = cache.jobs.invalid["team/j0"].error
    assert error.startswith("spec.roles: all roles and their pod templates must have at most 5,000 values")


LARGE: dict[str, Callable[[int], dict[str, Any]]] = {
    "empty objects": lambda number: {"odd": [number, [{}] * (MAX_ROLES_VALUES - 100)]},
    "objects inside objects": lambda number: {"odd": [number, [{"a": {"b": {}}}] * ((MAX_ROLES_VALUES - 100) // 3)]},
    "variables": lambda number: {
        "containers": [{"env": [{"name": f"A{i}", "value": str(number)} for i in range((MAX_ROLES_VALUES - 100) // 3)]}]
    },
    "volumes": lambda number: {"volumes": [{"name": f"v{number}-{i}"} for i in range((MAX_ROLES_VALUES - 100) // 2)]},
    "volumes of the run folder": lambda number: {
        "volumes": [{"name": "muster-run", "a": number} for i in range((MAX_ROLES_VALUES - 100) // 3)]
    },
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_a_large_template_uses_little_memory_beside_its_text(make: Callable[[int], dict[str, Any]]) -> None:
    seen_with(1, lambda number: make(1000))  # caches that are filled once
    assert held_mib(lambda: seen_with(20, make)) < 20 * 0.4
    assert len(seen_with(2, make).observe().workloads) == 2, "it is legal"


def test_jobs_with_one_template_share_its_text() -> None:
    text = "x" * (MAX_ROLES_BYTES - 1000)
    seen_with(1, lambda number: {"containers": [{"args": ["y"]}]})

    def put() -> ClusterCache:
        cache, _ = new_cache()
        for number in range(100):
            document = job_document(f"j{number}", number + 1, priority=number)  # their specs differ
            document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["args"] = [text]
            cache.jobs.on_upsert(read(RawCustomObject, document))
        return cache

    assert held_mib(put) < 3


class Cluster(Server):
    """Lists the given jobs."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__()
        self.jobs = list(jobs)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/trainingjobs"):
            self.calls.append(f"GET {request.query['fieldSelector']}")
            return web.json_response({"items": self.jobs}, dumps=compact)
        return await super().answer(request)


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def as_served(document: dict[str, Any]) -> RawCustomObject:
    return msgspec.json.decode(compact(document), type=RawCustomObject)


def forget(harness: OperatorHarness) -> None:
    """Evict the template texts, as if many others had been read."""
    templates = harness.cache.templates
    templates._texts, templates._decoded = LRUCache(), LRUCache()


def test_an_evicted_template_text_is_read_again_once_for_all_pods_of_a_gang() -> None:
    document = job_document("llama", 5)
    server = Cluster(document)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.cache.jobs.on_upsert(as_served(document))
        forget(harness)
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"
        assert server.calls.count("GET metadata.name=llama") == 1
        pods = [body for body in server.bodies if body.get("kind") == "Pod"]
        assert [pod["spec"]["containers"][0]["resources"] for pod in pods] == [{"limits": {"nvidia.com/gpu": "1"}}] * 2

    serve(server, scenario)


def test_no_pod_is_created_from_a_template_other_than_the_one_decided_on() -> None:
    document, edited = job_document("llama", 5), job_document("llama", 6)
    edited["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = "other"
    server = Cluster(edited)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.cache.jobs.on_upsert(as_served(document))
        forget(harness)
        await harness.run_cycle()
        assert server.count("POST /api/v1/namespaces/team/pods") == 0
        assert harness.queue.pause_s("uid-llama") > 0

    serve(server, scenario)


def test_an_edit_of_a_field_that_is_not_cached_makes_another_template() -> None:
    cache, _ = new_cache()
    digests = set()
    for version, image in enumerate(("a", "b"), 1):
        cache.jobs.on_upsert(with_pod("llama", version, containers=[{"name": "main", "image": image}]))
        known = cache.jobs.get("uid-llama")
        assert known is not None
        digests.add(known.templates["trainer"].digest)
    assert [len(digest) for digest in digests] == [64, 64]


def test_a_list_is_delivered_page_by_page() -> None:
    pages = [[job_document("a", 1), job_document("b", 2)], [job_document("c", 3)]]
    limits: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(3600)
        limits.append(request.query["limit"])
        page = int(request.query.get("continue", "0"))
        meta = {"resourceVersion": "3", **({"continue": "1"} if page == 0 else {})}
        if page == 1:
            assert training_jobs(cache.observe().workloads) != (), "the first page is known"
        return web.json_response({"metadata": meta, "items": pages[page]})

    cache, _ = new_cache()

    async def scenario(api: AsyncKubeClient) -> None:
        reflector = Reflector(api, TRAINING_JOBS, RawCustomObject, cache.jobs, page_size=2)
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(60):
            await reflector.synced.wait()
        running.cancel()

    serve(Answering(answer), scenario)
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["a", "b", "c"]
    assert limits == ["2", "2"]


class Answering:
    def __init__(self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        self._answer = answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request)
