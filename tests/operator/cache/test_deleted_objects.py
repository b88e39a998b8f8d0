"""A deleted object does not reappear, however late an answer shows it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import Server, serve
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, pod_seen, read

from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import ApiError, AsyncKubeClient, NoAnswer
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.writes.uncertain import UncertainWrites, WriteTarget

JOB = "/apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama"


class LateAnswers(Server):
    """Returns version 5 of the job; `then` happens before that answer is handled."""

    cache: ClusterCache

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
        answer: dict[str, Any] = {"items": [job_document("llama", 5)]}
        self.cache.jobs.on_delete(read(RawCustomObject, job_document("llama", 7)))
        self.cache.jobs.on_bookmark(7)
        return web.json_response(text=json.dumps(answer))


def test_a_job_deleted_before_the_answer_to_a_get_is_gone() -> None:
    server = LateAnswers()

    async def scenario(api: AsyncKubeClient) -> None:
        server.cache, _ = new_cache()
        server.cache.jobs.on_upsert(read(RawCustomObject, job_document("llama", 5)))
        server.cache.jobs.on_bookmark(5)
        uncertain = UncertainWrites(api, server.cache, lambda: None)
        with pytest.raises(ApiError):
            await uncertain.perform(WriteTarget("uid-llama", JOB), lambda: api.patch(f"{JOB}/status", b"{}"))
        async with asyncio.timeout(60):
            while uncertain.concerns("uid-llama"):  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
        assert training_jobs(server.cache.observe().workloads) == ()

    serve(server, scenario)


def test_a_get_restores_no_deleted_pod_but_adds_a_new_one() -> None:
    cache, _ = new_cache()
    pod = pod_seen("p", 5)
    cache.pods.on_read(pod)
    assert len(cache.pods._cache) == 1
    cache.pods.on_delete(pod_seen("p", 7))
    cache.pods.on_bookmark(7)
    cache.pods.on_read(pod)
    assert len(cache.pods._cache) == 0
    cache.pods.on_read(pod_seen("p", 8))
    assert len(cache.pods._cache) == 1


def test_a_write_answered_with_429_stays_uncertain() -> None:
    server = Server([("PATCH", "status", 401)])

    async def scenario(api: AsyncKubeClient) -> None:
        uncertain, answers = UncertainWrites(api, new_cache()[0], lambda: None), iter([NoAnswer("reset")])

        async def write() -> bytes:
            for error in answers:
                raise error
            return await api.patch(f"{JOB}/status", b"{}")

        with pytest.raises(NoAnswer):
            await uncertain.perform(WriteTarget("uid-llama", JOB), write)
        async with asyncio.timeout(60):
            while server.count("PATCH") < 2:  # noqa: ASYNC110 - a condition of another task
                await asyncio.sleep(0.01)
            assert server.count("GET") == 0
            server.refuses.clear()
            while uncertain.concerns("uid-llama"):  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        assert server.count("GET") == 1

    serve(server, scenario)
