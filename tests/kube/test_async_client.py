"""What the asynchronous client sends to the API server, and to whom."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from tests.cluster_client.server import Server
from tests.kube.impersonation import HEADERS, USER_FIELDS, received
from tests.kube.proxy import run_proxy
from tests.operator.api_server import RUNNER, serve

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, ApiRateLimits, AsyncKubeClient, NoAnswer
from muster.kube.config import ClientConfig, KubeContext, load_config


class Redirecting:
    """Redirects every request to another path; `paths` are those that were requested."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A redirect."""
        self.paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})


def test_no_redirect_is_followed() -> None:
    server = Redirecting()

    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(ApiError) as read:
            await api.get("/api/v1/pods")
        with pytest.raises(ApiError) as written:
            await api.post("/api/v1/pods", b"{}")
        with pytest.raises(ApiError) as watched:
            async with api.stream("/api/v1/pods", {"watch": "1"}, 60.0):
                pass
        assert [read.value.code, written.value.code, watched.value.code] == [307, 307, 307]

    serve(server, scenario)
    assert server.paths == ["/api/v1/pods"] * 3


class Dying:
    """Executes one request after a first one, answers it not, and takes no connection from then on if `dies`."""

    def __init__(self, dies: bool) -> None:
        self.dies = dies
        self.executed: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Nothing, except for GET."""
        if request.method == "GET":
            return web.json_response({})
        self.executed.append(request.method)
        assert request.transport is not None
        if self.dies:
            for site in request.app[RUNNER].sites:
                assert site._server is not None
                site._server.close()
        request.transport.abort()
        return web.Response()


@pytest.mark.parametrize("dies", [False, True], ids=["reachable", "unreachable"])
@pytest.mark.parametrize("verb", ["POST", "PATCH", "PUT", "DELETE"])
def test_a_write_without_an_answer_is_sent_once_and_its_outcome_is_unknown(verb: str, dies: bool) -> None:
    server = Dying(dies)

    async def scenario(api: AsyncKubeClient) -> None:
        await api.get("/api/v1/pods")
        with pytest.raises(NoAnswer):
            await getattr(api, verb.lower())("/api/v1/namespaces/team/pods/p", b"{}")

    serve(server, scenario)
    assert server.executed == [verb]


def test_impersonation_is_sent_with_every_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "a", "user": "u"}}],
                "clusters": [{"name": "a", "cluster": {"server": "https://host"}}],
                "users": [{"name": "u", "user": {"token": "t", **USER_FIELDS}}],
            }
        )
    )
    server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})

    async def run() -> None:
        found = load_config(KubeContext(str(tmp_path / "config")), {})
        config = replace(found, server=f"http://127.0.0.1:{server.port}", tls=None)
        async with AsyncKubeClient(config, ApiRateLimits()) as api:
            await api.get("/api/v1/nodes/n1")
            await api.patch("/api/v1/nodes/n1", b"{}")
            async with api.stream("/api/v1/nodes", {"watch": "1"}, 60.0):
                pass

    asyncio.run(run())
    assert [received(sent) for sent in server.headers] == [HEADERS] * 3
    assert all(("Authorization", "Bearer t") in sent for sent in server.headers)


def test_requests_pass_through_the_proxy_of_the_kubeconfig() -> None:
    async def run(url: str) -> bytes:
        config = ClientConfig("http://api.example:8080", None, dict, proxy_url=url)
        async with AsyncKubeClient(config, ApiRateLimits()) as api:
            return await api.get("/version")

    with run_proxy() as proxy:
        assert asyncio.run(run(f"http://me:s%40cret@127.0.0.1:{proxy.port}")) == b"{}"
    (request,) = proxy.heads
    assert request.startswith("GET http://api.example:8080/version HTTP/1.1")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:s@cret').decode()}" in request


def test_a_login_that_cannot_be_read_is_an_error_and_no_outage(server: Server) -> None:
    def unreadable() -> dict[str, str]:
        raise ClusterError("cannot read the token file", reason="Unauthorized")

    async def run() -> None:
        config = ClientConfig(f"http://127.0.0.1:{server.port}", None, unreadable)
        async with AsyncKubeClient(config, ApiRateLimits()) as api:
            with pytest.raises(ClusterError) as error:
                await api.get("/api/v1/nodes")
            assert error.value.reason == "Unauthorized"
            with pytest.raises(ClusterError):
                async with api.stream("/api/v1/nodes", {"watch": "1"}, 60.0):
                    pass
            assert api.outages.count == 0

    asyncio.run(run())
    assert server.requested == []


def test_a_cancelled_request_that_waits_for_the_rate_limit_returns_its_token() -> None:
    async def run() -> None:
        limits = ApiRateLimits(per_s=1e-4, burst=1)  # almost three hours between two requests
        async with AsyncKubeClient(ClientConfig("http://127.0.0.1:9", None, dict), limits) as api:
            with pytest.raises(ClusterError):
                await api.get("/api/v1/nodes")  # has the only token; nothing listens
            waiting = [asyncio.create_task(api.get("/api/v1/nodes")) for _ in range(20)]
            await asyncio.sleep(0)  # all tasks begin
            assert api.available_tokens() < -19.5
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert api.available_tokens() > -0.5

    asyncio.run(run())
