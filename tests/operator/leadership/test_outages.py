"""After an outage nothing is decided, and no earlier decision is written, until everything is listed again."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, serve, serving

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, ApiRateLimits, AsyncKubeClient, Fenced, NoAnswer
from muster.kube.config import ClientConfig
from muster.kube.outages import Outages


def test_an_outage_ends_once_all_resources_are_listed() -> None:
    outages = Outages()
    for resource in ("pods", "nodes"):
        outages.list_completed(resource, outages.list_started(resource))
    assert outages.is_synced()
    began = outages.list_started("pods")
    assert outages.unsynced() == ["pods"]
    outages.record_unreachable()
    outages.list_completed("pods", began)
    assert outages.unsynced() == ["pods", "nodes"], "that list is older than the outage"
    outages.list_completed("nodes", outages.list_started("nodes"))
    assert not outages.is_synced()
    outages.list_completed("pods", outages.list_started("pods"))
    assert outages.is_synced()


def test_an_unreachable_server_is_an_outage_and_an_error_response_is_not() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(ApiError):
            await api.post("/api/v1/namespaces/team/pods", b"{}")
        assert api.outages.count == 0
        async with AsyncKubeClient(
            ClientConfig("http://127.0.0.1:1", None, dict), ApiRateLimits(), outages=api.outages
        ) as other:
            with pytest.raises(ClusterError):
                await other.get("/api/v1/pods")
            assert (api.outages.count, api.outages.reachable.is_set()) == (1, False)
            with pytest.raises(ClusterError):
                async with other.stream("/api/v1/pods", {}, 60.0):
                    pass
            assert api.outages.count == 2
        await api.get("/api/v1/pods")
        assert api.outages.reachable.is_set()

    serve(Server(refuses=[("POST", "pods", 500)]), scenario)


def test_a_write_whose_connection_breaks_is_no_outage_and_a_read_is_one() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(NoAnswer):
            await api.post("/api/v1/namespaces/team/pods", b"{}")
        assert api.outages.count == 0
        with pytest.raises(ClusterError):
            await api.get("/api/v1/pods")
        assert api.outages.count == 1

    serve(Server(lost="/pods"), scenario)


def test_a_slow_answer_is_no_outage() -> None:
    class Slow:
        async def answer(self, request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(60)
            return web.Response()

    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(ClusterError):
            await api.get("/api/v1/pods")
        assert api.outages.count == 0

    asyncio.run(serving(Slow(), scenario, limits=ApiRateLimits(timeout_s=0.05)))


def test_a_write_requested_before_an_outage_is_not_started_after_it() -> None:
    class Busy:
        calls = 0
        api: AsyncKubeClient

        async def answer(self, request: web.Request) -> web.StreamResponse:
            self.calls += 1
            self.api.outages.record_unreachable()
            return web.json_response({}, status=503, headers={"Retry-After": "0"})

    busy = Busy()

    async def scenario(api: AsyncKubeClient) -> None:
        busy.api = api
        with pytest.raises(Fenced):
            await api.post("/api/v1/namespaces/team/pods", b"{}")

    asyncio.run(serving(busy, scenario))
    assert busy.calls == 1


def test_a_leader_decides_nothing_until_everything_is_listed_again() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        began = api.outages.list_started("trainingjobs")
        harness.wakeup.set()  # cleared at the start of a cycle
        leading = asyncio.create_task(harness.leader.run_term())
        async with asyncio.timeout(60):
            while harness.leader.term is None:  # noqa: ASYNC110 - a condition of another part
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert harness.wakeup.is_set()
            api.outages.list_completed("trainingjobs", began)
            while not harness.metrics.registry.get_sample_value("muster_scheduling_cycles_total"):  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        leading.cancel()

    serve(Server(), scenario)


def test_requests_that_fail_while_a_watch_is_closed_are_outages() -> None:
    async def scenario() -> None:
        outages, opened, ended = Outages(), asyncio.Event(), False

        async def watch() -> None:
            nonlocal ended
            try:
                async with asyncio.timeout(None) as scope:
                    with outages.cancel_on_outage(scope):
                        opened.set()
                        await asyncio.Event().wait()
            except TimeoutError:
                ended = True

        watching = asyncio.create_task(watch())
        await opened.wait()
        for _ in range(20):  # a request fails in every iteration of the event loop until the watch has ended, and later
            outages.record_unreachable()
            await asyncio.sleep(0)
        await watching
        assert (ended, outages.count) == (True, 20)

    asyncio.run(scenario())


def test_lists_after_consecutive_outages_have_backoff() -> None:
    now = 0.0
    outages = Outages(lambda: now)
    outages.list_completed("pods", outages.list_started("pods"))
    pauses = []
    for _ in range(12):
        outages.record_unreachable()
        outages.record_unreachable()
        pauses.append(outages.list_delay_s())
        now += pauses[-1]
        assert outages.list_delay_s() == pytest.approx(0.0)
        outages.list_completed("pods", outages.list_started("pods"))
    assert pauses[:4] == pytest.approx([0.0, 0.2, 0.4, 0.8])
    assert pauses[-1] == pytest.approx(15.0)
    now += 60.0
    outages.record_unreachable()
    assert outages.list_delay_s() == 0.0, "the last one was long ago"


def test_an_outage_before_the_first_list_delays_no_list() -> None:
    outages = Outages(lambda: 0.0)
    for _ in range(5):
        outages.record_unreachable()
    outages.list_started("pods")
    for _ in range(5):
        outages.record_unreachable()
    assert outages.list_delay_s() == 0.0
