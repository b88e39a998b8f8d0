"""An operator against a server that has one Lease and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from tests.operator.api_server import Server

from muster.kube.async_client import AsyncKubeClient
from muster.kube.lease import Fence, LeaderElector, LeaseCandidate, LeaseTimes
from muster_operator.metrics import OperatorMetrics
from muster_operator.settings import Settings, parse_flags
from muster_operator.wiring import Operator

TIMES = LeaseTimes(duration_s=60.0, renew_deadline_s=50.0, retry_s=0.02)


class Cluster(Server):
    """Lists and watches, with nothing in them, and one Lease. Lists of pods wait for `lists`."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: dict[str, Any] | None = None
        self.lists = asyncio.Event()
        self.listed = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "/leases" in request.path:
            return await self._lease(request)
        if request.method != "GET":
            return await super().answer(request)
        if "watch" in request.query:
            watch = web.StreamResponse()
            await watch.prepare(request)
            while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - aiohttp has no event for it
                await asyncio.sleep(0.02)
            return watch
        if request.path.endswith("/pods"):
            self.calls.append("LIST pods")
            await self.lists.wait()
            self.listed += 1
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.lease or {"code": 404}, status=200 if self.lease else 404)
        body = await request.json()
        now = (self.lease or {"metadata": {}})["metadata"].get("resourceVersion", "")
        if body["metadata"].get("resourceVersion", "") != now:
            return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
        self.take(body["spec"])
        return web.json_response(self.lease)

    def take(self, spec: dict[str, Any]) -> None:
        """Another client writes the Lease."""
        self.version += 1
        self.lease = {"metadata": {"name": "muster-operator", "resourceVersion": str(self.version)}, "spec": spec}

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"].get("holderIdentity", ""))


def settings() -> Settings:
    flags = ["--identity", "me", "--namespace", "ns", "--listen", "127.0.0.1:0", "--listen-local", "127.0.0.1:0"]
    return parse_flags(flags)


def operator(api: AsyncKubeClient) -> tuple[Operator, LeaderElector, LeaseCandidate]:
    candidate = LeaseCandidate("me", TIMES)
    election = LeaderElector(api, "ns", "muster-operator", candidate)
    return Operator(settings(), api, Fence(election), OperatorMetrics()), election, candidate
