"""Without leadership no write is sent, however late the loss is detected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import pytest
from aiohttp import web

from muster.kube.async_client import ApiRateLimits, AsyncKubeClient, Fenced
from muster.kube.config import ClientConfig


def calls(may_write: Iterable[bool], *params: dict[str, str]) -> tuple[list[str], list[str]]:
    """POST once for each of `params`; returns the requests that a server received, and the result of each call."""
    answers: Iterator[bool] = iter(may_write)
    return asyncio.run(_calls(answers, params))


async def _calls(answers: Iterator[bool], params: Iterable[dict[str, str]]) -> tuple[list[str], list[str]]:
    cache, ended = list[str](), list[str]()

    async def answer(request: web.Request) -> web.Response:
        cache.append(f"{request.method} {request.path_qs}")
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint = ClientConfig(f"http://127.0.0.1:{runner.addresses[0][1]}", None, dict)
    try:
        async with AsyncKubeClient(endpoint, ApiRateLimits(), may_write=lambda: next(answers)) as api:
            for query in params:
                try:
                    await api.post("/api/v1/pods", b"{}", query)
                    ended.append("sent")
                except Fenced:
                    ended.append("fenced")
    finally:
        await runner.cleanup()
    return cache, ended


def test_a_write_is_not_started_without_the_lease() -> None:
    assert calls([False], {}) == ([], ["fenced"])


@pytest.mark.parametrize("before", [0, 1], ids=["a new connection", "a connection that was used before"])
def test_a_lease_that_is_lost_while_a_write_waits_for_its_connection_stops_the_write(before: int) -> None:
    cache, ended = calls([True, True] * before + [True, False], *[{}] * (before + 1))
    assert (cache, ended) == (["POST /api/v1/pods"] * before, ["sent"] * before + ["fenced"])


def test_a_dry_run_changes_nothing_and_needs_no_lease() -> None:
    cache, ended = calls([], {"dryRun": "All"})
    assert (cache, ended) == (["POST /api/v1/pods?dryRun=All"], ["sent"])
