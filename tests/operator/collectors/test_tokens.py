"""The key of tokens: a new leader uses the present key, which another leader may have created."""

from __future__ import annotations

import asyncio
import base64

from aiohttp import web
from tests.operator.api_server import serve, until
from tests.operator.election import TIMES, Cluster

from muster.kube.async_client import AsyncKubeClient
from muster.kube.lease import Fence, LeaderElector, LeaseCandidate
from muster_operator.collectors.tokens import derive_token
from muster_operator.metrics import OperatorMetrics
from muster_operator.settings import parse_flags
from muster_operator.wiring import Operator


class Keys(Cluster):
    """Has the Secret of the key."""

    key = b"a" * 32

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and "/secrets/" in request.path:
            return web.json_response({"data": {"key": base64.b64encode(self.key).decode()}})
        return await super().answer(request)


def operator(api: AsyncKubeClient) -> tuple[Operator, LeaderElector]:
    """An operator that polls collectors continuously."""
    flags = ["--identity", "me", "--namespace", "ns", "--listen", "127.0.0.1:0", "--listen-local", "127.0.0.1:0"]
    settings = parse_flags([*flags, "--collector-image", "x", "--heartbeat-interval-seconds", "0.05"])
    election = LeaderElector(api, "ns", "muster-operator", LeaseCandidate("me", TIMES))
    return Operator(settings, api, Fence(election), OperatorMetrics()), election


def test_a_leader_uses_the_key_that_another_leader_created_meanwhile() -> None:
    cluster = Keys()
    cluster.lists.set()

    async def scenario(api: AsyncKubeClient) -> None:
        (one, election), stop = operator(api), asyncio.Event()
        tokens = one._tokens
        assert tokens is not None
        running = asyncio.create_task(one.run(stop))
        await until(lambda: tokens.key.loaded is not None)
        assert tokens.token("u") == derive_token(b"a" * 32, "u")
        cluster.take({"holderIdentity": "other", "leaseDurationSeconds": 60, "acquireTime": "x"})
        await until(lambda: not election.may_write())
        cluster.key = b"b" * 32  # the Secret was deleted and created again
        cluster.take({"leaseDurationSeconds": 1})  # the Lease is released
        await until(lambda: cluster.holder == "me" and one._fence())
        await until(lambda: tokens.key.loaded is not None)
        stop.set()
        await running
        assert tokens.token("u") == derive_token(b"b" * 32, "u")

    serve(cluster, scenario)
