"""The leader loads the key of signed admissions before it admits jobs by their pods."""

from __future__ import annotations

import asyncio
import base64
from math import inf
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import Server, serve
from tests.operator.conftest import LONG_S
from tests.operator.election import Cluster, operator, until
from tests.operator.single_pod import SIGNER, pod_with_record, single_pod_job

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient


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
        return web.json_response({"metadata": {}, "data": {"key": base64.b64encode(SIGNER.key).decode()}})


@pytest.mark.parametrize("codes", [(200,), (404, 200), (503, 200), (403, 200)])
def test_a_leader_loads_the_key_first(codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_operator.__main__._KEY_TIMEOUTS_S", (LONG_S, LONG_S))
    server = Secrets(*codes)

    async def scenario(api: AsyncKubeClient) -> None:
        (one, _, _), stop = operator(api), asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await until(lambda: one._leader.term is not None)
        assert one._signer is not None
        assert one._signer.key == SIGNER.key
        stop.set()
        await running

    serve(server, scenario)


@pytest.mark.parametrize("code", [403, 500])
def test_without_the_key_statuses_are_written_first_after_a_timeout_with_a_log_line(
    code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_operator.__main__._KEY_TIMEOUTS_S", (0.1, 0.6))
    server = Secrets(code)

    async def scenario(api: AsyncKubeClient) -> None:
        (one, _, _), stop = operator(api), asyncio.Event()
        running, began = asyncio.create_task(one.run(stop)), asyncio.get_running_loop().time()
        await until(lambda: one._leader.term is not None)
        assert one._signer is None
        assert "admissions are written before pods" in caplog.text
        assert code == 403 or asyncio.get_running_loop().time() - began >= 0.6
        stop.set()
        await running

    serve(server, scenario)


def test_while_pods_have_records_the_leader_waits_for_the_key() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        one, _, _ = operator(api)
        forbidden, no_answer = ApiError(403, "Forbidden", ""), ClusterError("no answer")
        assert [one._key_timeout_s(error) for error in (forbidden, ApiError(500, "", ""), no_answer)] == [
            3.0,
            60.0,
            inf,
        ]
        one._cache.jobs.on_upsert(single_pod_job())
        one._cache.pods.on_upsert(pod_with_record())
        assert one._key_timeout_s(forbidden) == 60.0

    serve(Server(), scenario)


def test_a_leader_that_continues_needs_no_new_key() -> None:
    """An API server that has just started may reject it for a moment."""
    server = Secrets(200)

    async def scenario(api: AsyncKubeClient) -> None:
        (one, election, _), stop = operator(api), asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await until(lambda: one._leader.term is not None)
        signer, term = one._signer, one._leader.term
        server.codes = [403]
        one._fence.enter(None)
        await until(lambda: one._leader.term is not term)
        one._fence.enter(election.acquired)
        await until(lambda: one._leader.term is not None)
        assert one._signer is signer
        stop.set()
        await running

    serve(server, scenario)


def test_losing_the_lease_while_loading_the_key_returns_to_standby() -> None:
    server = Secrets(503)

    async def scenario(api: AsyncKubeClient) -> None:
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

    serve(server, scenario)
