"""Writes of TraceCaptures that the API server rejects are repeated with backoff, as all others of one object."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.api_server import Server, new_queue, serve
from tests.operator.caches import new_cache
from tests.operator.objects import capture_document, read

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.captures.capture_cache import CaptureCache
from muster_operator.captures.capture_controller import CaptureController
from muster_operator.hang_sentences import HangSentences
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import CollectorSidecarConfig

ENDED = {"phase": "Failed", "finishedAt": "2020-11-21T10:00:00Z"}


async def reconcile(controller: CaptureController) -> None:
    """One round, and the end of what it has begun."""
    await controller._reconcile_all()
    await asyncio.gather(*controller._tasks.values())


@pytest.mark.parametrize("code", [403, 500])
@pytest.mark.parametrize(
    ("method", "status"),
    [("PATCH", {}), ("DELETE", ENDED)],
    ids=["status of a capture whose job is missing", "deletion after its TTL"],
)
def test_a_rejected_write_of_a_capture_is_repeated_after_a_growing_pause(
    method: str, status: dict[str, Any], code: int
) -> None:
    server, now = Server([(method, "tracecaptures/a", code)]), 0.0

    async def scenario(api: AsyncKubeClient) -> None:
        nonlocal now
        cache, captures = new_cache()[0], CaptureCache(lambda: None)
        controller = CaptureController(
            queue=new_queue(api, cache, lambda: now),
            cache=cache,
            captures=captures,
            config=CollectorSidecarConfig(),
            tokens=None,
            metrics=OperatorMetrics(),
            is_leading=lambda: True,
            wakeup=asyncio.Event(),
            hangs=HangSentences(lambda: None),
            events=cast(Any, SimpleNamespace(stalled=set())),
        )
        captures.on_upsert(read(RawCustomObject, capture_document("a", **status)))
        counts = []
        for pause_s in (0.0, 0.5, 5.0, 5.0, 5.0):
            now += pause_s
            await reconcile(controller)
            counts.append(server.count(method))
        assert counts[:3] == [1, 1, 2]
        assert counts[-1] <= 4
        server.refuses.clear()
        now += 60.0
        await reconcile(controller)
        assert server.count(method) == counts[-1] + 1

    serve(server, scenario)
