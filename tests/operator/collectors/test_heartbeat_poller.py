"""Polling: which collectors are polled, the effect of answers, and Events for unreachable ones."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.operator.polling import KEY, POD, UID, PollerHarness

from muster.tracing.collect.heartbeat_server import HeartbeatServer, HeartbeatSource, ListenAddress
from muster.tracing.shared_folder import SharedFolder
from muster_operator.collectors import heartbeat_poller
from muster_operator.collectors.heartbeat_client import HeartbeatResponse, HeartbeatTarget, PollResult
from muster_operator.collectors.tokens import derive_token


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
    poller = PollerHarness("127.0.0.1")
    poller.asking.unreachable_after_s = 0.0
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
    def fails(*requested: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(heartbeat_poller, "poll_all", fails)
    with pytest.raises(RecursionError):
        asyncio.run(PollerHarness("127.0.0.1").asking.run())


def test_an_invalid_answer_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    poller = PollerHarness("127.0.0.1")
    answer = HeartbeatResponse(now=time.time(), job_uid=UID, pod=POD, heartbeat={"step": 3, "at": time.time()})
    requested = HeartbeatTarget(UID, POD, "127.0.0.1", 1, "", durable=True)
    odd = PollResult(
        HeartbeatTarget("uid-odd", "odd", "127.0.0.1", 1, "", durable=True), cast(HeartbeatResponse, "no answer")
    )
    monkeypatch.setattr(heartbeat_poller, "poll_all", lambda *sweep: [odd, PollResult(requested, answer)])
    poller.until(lambda: poller.woken > 0)
    assert poller.cache.observe().heartbeats[UID].step == 3
    assert poller.sample("muster_component_failures_total", component="collectors") >= 1
