"""Curves for the read API: asked of the collector of the job's lead pod, by the leader and by standbys."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from tests.operator.objects import LONG_S
from tests.operator.polling import CHOICES, KEY, POD, UID, PollerHarness

from muster.errors import ClusterError, NotFound
from muster.heartbeats.parse import StepPoint
from muster.kube.async_client import ApiError
from muster.tracing.collect.heartbeat_server import HeartbeatServer, HeartbeatSource, ListenAddress
from muster.tracing.shared_folder import SharedFolder
from muster_operator.collectors import heartbeat_poller
from muster_operator.collectors.curve_client import CurveReader
from muster_operator.collectors.tokens import CollectorTokens, derive_token
from muster_operator.shared_key import SharedKey


class SecretApi:
    """Has the Secret of the key, unless it is None, and permits no write."""

    def __init__(self, key: bytes | None = KEY) -> None:
        self.key = key

    async def get(self, path: str) -> bytes:
        assert path == "/api/v1/namespaces/muster-system/secrets/key"
        if self.key is None:
            raise ApiError(404, "NotFound", path)
        return json.dumps({"data": {"key": base64.b64encode(self.key).decode()}}).encode()


@pytest.fixture(autouse=True)
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the job's lead pod, whose rank 0 has done two steps."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank-0.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "step_time_s": 0.5}\n')
    source = HeartbeatSource(SharedFolder(tmp_path), UID, POD)
    server = HeartbeatServer(ListenAddress("127.0.0.1", 0), derive_token(KEY, UID), source, print)
    server.start()
    port = server.wait_for_port(60.0)
    monkeypatch.setattr(heartbeat_poller, "collector_port", lambda *pod, on_host_network: port)
    yield
    server.stop()


def reader(api: SecretApi, address: str = "127.0.0.1", **status: Any) -> CurveReader:
    harness = PollerHarness(address)
    harness.pod(address, 2, **status)
    key = SharedKey(cast(Any, api), "muster-system", "key")
    return CurveReader(harness.cache, CollectorTokens(cast(Any, api), CHOICES, key), LONG_S)


def read(curves: CurveReader, uid: str = UID) -> list[StepPoint]:
    return list(asyncio.run(curves.read(uid)))


def test_a_running_job_has_the_steps_of_its_rank_0() -> None:
    assert read(reader(SecretApi())) == [(1, 5.0, None), (2, None, 0.5)]


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {"phase": "Succeeded"}])
def test_without_a_running_pod_there_is_no_curve(status: dict[str, Any]) -> None:
    with pytest.raises(NotFound) as caught:
        read(reader(SecretApi(), **status))
    assert caught.value.reason == "NoCollector"
    with pytest.raises(NotFound):
        read(reader(SecretApi()), uid="deleted")


def test_a_job_without_a_collector_has_no_curve_where_no_job_has_had_one_and_so_no_key_exists() -> None:
    with pytest.raises(NotFound) as caught:
        read(reader(SecretApi(None), phase="Pending"))
    assert caught.value.reason == "NoCollector"


def test_a_collector_that_does_not_serve_curves_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        threading.Thread(target=older.serve_forever, daemon=True).start()
        monkeypatch.setattr(heartbeat_poller, "collector_port", lambda *pod, on_host_network: older.server_port)
        with pytest.raises(NotFound, match=POD) as caught:
            read(reader(SecretApi()))
        older.shutdown()
    assert caught.value.reason == "NoCollector"


def test_without_a_key_there_is_none_and_it_is_not_created() -> None:
    with pytest.raises(ClusterError, match="the operator's key"):
        read(reader(SecretApi(None)))


def test_a_key_that_was_replaced_is_read_again_after_the_collector_has_rejected_the_old_one() -> None:
    api = SecretApi(b"o" * 32)
    curves = reader(api)
    with pytest.raises(ClusterError, match="HTTP 401"):
        read(curves)
    api.key = KEY
    assert read(curves) == [(1, 5.0, None), (2, None, 0.5)]


def test_a_collector_that_does_not_answer_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_poller, "collector_port", lambda *pod, on_host_network: 1)
    with pytest.raises(ClusterError) as caught:
        read(reader(SecretApi()))
    assert caught.value.reason == "CollectorUnreachable"
