"""A poller of heartbeats with one job, whose pod has a collector."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from tests.operator.caches import FakeDryRuns
from tests.operator.objects import LONG_S, job_document, pod_seen, read

from muster.cluster import RecordEvent
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject, V1Container
from muster_operator.cache.cluster_cache import ClusterCache, CollectorSettings
from muster_operator.collectors.heartbeat_poller import HeartbeatPoller
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import CollectorSidecarConfig
from muster_operator.runners.create_pods.pod_owner import pod_owner
from muster_operator.shared_key import SharedKey

UID, KEY = "uid-llama", b"k" * 32
POD = pod_name("llama", UID, "trainer", 0, 0)
CHOICES = CollectorSidecarConfig(image="x")


def seen_job(version: int = 1, **status: Any) -> RawCustomObject:
    admitted = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    document = job_document(version=version, stallTimeoutSeconds=60)
    return read(RawCustomObject, {**document, "status": {"conditions": [admitted], "phase": "Running", **status}})


class PollerHarness:
    """The poller of an operator, with one job whose pod has this address."""

    def __init__(self, address: str) -> None:
        self.pending_events: list[RecordEvent] = []
        self.woken = 0
        self.cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, collectors=CollectorSettings(CHOICES, 0.05))
        self.cache.jobs.on_upsert(seen_job())
        self.pod(address)
        tokens = CollectorTokens(
            cast(AsyncKubeClient, None),
            CHOICES,
            SharedKey(cast(AsyncKubeClient, None), "muster-system", "key"),
        )
        tokens.key._bytes = KEY  # as if loaded
        self.metrics = OperatorMetrics()
        self.asking = HeartbeatPoller(
            self.cache,
            tokens,
            self.metrics,
            0.05,
            lambda: True,
            self.pending_events.append,
            self._wake,
            timeout_s=LONG_S,
        )

    def pod(self, address: str, version: int = 1, **status: Any) -> None:
        pod = pod_seen(POD, version, owner=UID, podIP=address, **status)
        pod.spec.init_containers = [V1Container(name="muster-collector")]
        self.cache.pods.on_upsert(pod)

    def _wake(self) -> None:
        self.woken += 1

    def until(self, holds: Callable[[], bool]) -> None:
        async def main() -> None:
            task = asyncio.create_task(self.asking.run())
            end = time.monotonic() + 300
            while not holds():
                assert time.monotonic() < end, "did not happen in time"
                await asyncio.sleep(0.02)
            task.cancel()

        asyncio.run(main())

    def until_swept(self, times: int, *, acts: bool) -> None:
        """Wait until leadership was checked so many times."""
        looked = 0

        def may_act() -> bool:
            nonlocal looked
            looked += 1
            return acts

        self.asking.is_leading = may_act
        self.until(lambda: looked > times)

    def count(self, outcome: str) -> float:
        return self.sample("muster_heartbeats_total", outcome=outcome)

    def sample(self, metric: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(metric, labels) or 0.0
