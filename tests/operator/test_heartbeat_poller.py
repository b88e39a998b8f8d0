"""Polling: which collectors are polled, the effect of answers, and Events for unreachable ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import job_document, pod_seen, read

from muster.cluster import RecordEvent
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawTrainingJob, V1Container
from muster.lifecycle import pod_name
from muster.tracing.heartbeat_server import HeartbeatServer, HeartbeatSource, ListenAddress
from muster.tracing.shared_folder import SharedFolder
from muster_operator.cache.cluster_cache import ClusterCache, CollectorSettings
from muster_operator.collectors import heartbeat_poller
from muster_operator.collectors.heartbeat_client import HeartbeatResponse, HeartbeatTarget, PollResult
from muster_operator.collectors.heartbeat_poller import HeartbeatPoller
from muster_operator.collectors.tokens import CollectorTokens, SharedKey, derive_token
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import CollectorSidecarConfig

UID, KEY = "uid-llama", b"k" * 32
POD = pod_name("llama", UID, "trainer", 0, 0)
CHOICES = CollectorSidecarConfig(image="x")


def seen_job(version: int = 1, **status: Any) -> RawTrainingJob:
    admitted = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    document = job_document(version=version, stallTimeoutSeconds=60)
    return read(RawTrainingJob, {**document, "status": {"conditions": [admitted], "phase": "Running", **status}})


class PollerHarness:
    """The poller of an operator, with one job whose pod has this address."""

    def __init__(self, address: str) -> None:
        self.pending_events: list[RecordEvent] = []
        self.woken = 0
        self.cache = ClusterCache(FakeDryRuns(), lambda: None, collectors=CollectorSettings(CHOICES, 0.05))
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
            self.cache, tokens, self.metrics, 0.05, lambda: True, self.pending_events.append, self._wake
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
            end = time.monotonic() + 30
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


def test_an_answer_is_observed_and_wakes_the_leader_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heartbeats").mkdir()
    (tmp_path / "heartbeats" / "rank-0.json").write_text(f'{{"step": 7, "at": {time.time()}}}')
    subject = HeartbeatSource(SharedFolder(tmp_path), UID, POD)
    endpoint = HeartbeatServer(ListenAddress("127.0.0.1", 0), derive_token(KEY, UID), subject, print)
    endpoint.start()
    try:
        port = endpoint.wait_for_port(20.0)
        monkeypatch.setattr(heartbeat_poller, "collector_port", lambda *pod, on_host_network: port)
        poller = PollerHarness("127.0.0.1")
        poller.until(lambda: poller.count("ok") >= 3)
    finally:
        endpoint.stop()
    assert poller.cache.observe().heartbeats[UID].step == 7
    assert (poller.woken, poller.pending_events) == (1, [])


def test_an_unreachable_collector_has_one_event_and_its_job_does_not_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_poller, "collector_port", lambda *pod, on_host_network: 1)
    monkeypatch.setattr(heartbeat_poller, "_UNREACHABLE_AFTER_S", 0.0)
    poller = PollerHarness("127.0.0.1")
    poller.until(lambda: poller.count("unreachable") >= 3)
    (event,) = poller.pending_events
    assert (event.reason, event.type) == ("CollectorUnreachable", "Warning")
    assert f"the collector of {POD} at 127.0.0.1 port 1 does not answer" in event.message
    assert poller.sample("muster_collectors_unreachable") == 1.0
    observed = poller.cache.observe()
    assert observed.heartbeats[UID].step_changed_at == observed.now


@pytest.mark.parametrize(
    ("address", "status"), [("", {}), ("127.0.0.1", {"phase": "Pending"}), ("127.0.0.1", {"phase": "Succeeded"})]
)
def test_pods_without_address_or_not_running_are_not_polled(address: str, status: dict[str, Any]) -> None:
    poller = PollerHarness(address)
    poller.pod(address, 2, **status)
    poller.until_swept(3, acts=True)
    assert (poller.count("ok"), poller.count("unreachable")) == (0.0, 0.0)


def test_a_standby_does_not_poll() -> None:
    poller = PollerHarness("127.0.0.1")
    poller.until_swept(3, acts=False)
    assert (poller.count("ok"), poller.count("unreachable")) == (0.0, 0.0)


def test_a_failed_poll_ends_the_component_which_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*asked: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(heartbeat_poller, "poll_all", fails)
    with pytest.raises(RecursionError):
        asyncio.run(PollerHarness("127.0.0.1").asking.run())


def test_an_invalid_answer_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    poller = PollerHarness("127.0.0.1")
    answer = HeartbeatResponse(now=time.time(), job_uid=UID, pod=POD, heartbeat={"step": 3, "at": time.time()})
    asked = HeartbeatTarget(UID, POD, "127.0.0.1", 1, "", durable=True)
    odd = PollResult(
        HeartbeatTarget("uid-odd", "odd", "127.0.0.1", 1, "", durable=True), cast(HeartbeatResponse, "no answer")
    )
    monkeypatch.setattr(heartbeat_poller, "poll_all", lambda *sweep: [odd, PollResult(asked, answer)])
    poller.until(lambda: poller.woken > 0)
    assert poller.cache.observe().heartbeats[UID].step == 3
    assert poller.sample("muster_component_failures_total", component="collectors") >= 1
