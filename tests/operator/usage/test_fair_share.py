"""Fair-share usage over scheduling cycles, with watch events of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.api_server import OperatorHarness, Server, admitted, serve
from tests.operator.objects import pod_seen, read

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.writes.finalizers import IN_USE

GPU = "nvidia.com/gpu"


def queue_seen(name: str, version: int, uid: str = "1", **fields: Any) -> RawCustomObject:
    """With a guarantee, so that usage is counted; its half-life is longer than the test."""
    meta = {"name": name, "uid": uid, "resourceVersion": str(version), "finalizers": [IN_USE]}
    quota = {
        "namespaceSelector": {},
        "halfLifeSeconds": 10**7,
        "resources": [{"flavor": "f", "guaranteed": {GPU: "8"}}],
    }
    return read(RawCustomObject, {"metadata": meta, "spec": quota | fields})


class Counted:
    """A leader with a fake clock, and a job with two GPUs of the queue `research`."""

    def __init__(self, api: AsyncKubeClient, server: Server) -> None:
        self.server = server
        self.harness = OperatorHarness(api)
        self.began = self.now = self.harness.cache._clock()
        self.harness.cache._clock = lambda: self.now
        self.queues = self.harness.cache.queues
        self.see("research")
        self.harness.submit("llama", 7, {**admitted(), "admittedAt": "2026-11-21T10:00:10Z"})
        ready = [{"type": "Ready", "status": "True"}]
        for index in (0, 1):
            self.harness.cache.pods.on_upsert(
                pod_seen(owner="uid-llama", version=8 + index, slot=(index, 0), conditions=ready)
            )

    def see(self, name: str, uid: str = "1", **fields: Any) -> None:
        """A watch delivers the queue as a user just wrote it."""
        self.server.version += 1
        self.queues.on_upsert(queue_seen(name, self.server.version, uid, **fields))

    async def after(self, elapsed_s: float) -> None:
        self.now += elapsed_s
        await self.harness.run_cycle()

    @property
    def written(self) -> dict[float, float]:
        """GPU-seconds in the queue's status, by the seconds since the start."""
        queue = self.queues.get("research")
        assert queue is not None
        status = queue.status.fair_share
        if status is None:
            return {}
        (gpus,) = (one.resource_seconds for one in status.usage if one.resource == GPU)
        return {status.at - self.began: gpus}


def run_scenario(scenario: Callable[[Counted], Any]) -> None:
    server = Server()

    async def counting(api: AsyncKubeClient) -> None:
        counted = Counted(api, server)
        await counted.after(0.0)
        await counted.after(70.0)
        assert counted.written == {70.0: pytest.approx(140.0, rel=1e-3)}
        await scenario(counted)

    serve(server, counting)


def test_another_new_queue_does_not_stop_usage_accounting() -> None:
    async def scenario(counted: Counted) -> None:
        counted.see("another")
        await counted.after(10.0)
        await counted.after(60.0)
        assert counted.written == {140.0: pytest.approx(280.0, rel=1e-3)}

    run_scenario(scenario)


def test_an_edit_of_the_queue_does_not_stop_usage_accounting() -> None:
    async def scenario(counted: Counted) -> None:
        counted.see("research", weight=3)
        await counted.after(10.0)
        await counted.after(60.0)
        assert counted.written == {140.0: pytest.approx(280.0, rel=1e-3)}

    run_scenario(scenario)


@pytest.mark.parametrize("deletion_is_seen", [True, False])
def test_a_recreated_queue_starts_without_usage(deletion_is_seen: bool) -> None:
    async def scenario(counted: Counted) -> None:
        if deletion_is_seen:
            counted.queues.on_delete(queue_seen("research", counted.server.version))
        counted.see("research", uid="2")
        await counted.after(10.0)
        assert counted.written == {}
        await counted.after(60.0)
        assert counted.written == {140.0: pytest.approx(120.0, rel=1e-3)}

    run_scenario(scenario)
