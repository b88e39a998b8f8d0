"""An API server that is away for a while: watching and waiting clients go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.objects import job, placement, status
from tests.cluster_client.server import ALL_JOBS, JOBS, NODES, Handler, Server, answered, chunks, lost

from muster.api.spec import TrainingJobStatus
from muster.cli import cluster, watch
from muster.cluster_client import client, jobs

PROGRESS = {"step": 7, "steps": 60, "at": "2026-01-01T00:00:00Z"}


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_HEARTBEAT_CACHE_S", 0.0)
    monkeypatch.setattr(watch, "_POLL_S", 0.01)
    monkeypatch.setattr(cluster, "_POLL_S", 0.01)
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.2)


def keep(server: Server, present: TrainingJobStatus) -> dict[str, Any]:
    document = job(status=present).model_dump(mode="json", by_alias=True, exclude_none=True)
    document["metadata"]["namespace"] = "default"
    return server.put(f"{JOBS}/llama", document)


def test_the_last_heartbeat_of_a_job_is_reported_while_the_server_is_away(server: Server) -> None:
    keep(server, status("Running", progress=PROGRESS))
    client = server.client()
    assert [heartbeat["step"] for heartbeat in client.heartbeats("llama")] == [7]
    server.fail("GET", f"{JOBS}/llama", lost, times=9)
    assert [heartbeat["step"] for heartbeat in client.heartbeats("llama")] == [7]


def test_a_watch_of_a_running_job_outlives_a_restart_of_the_api_server(served: Server, muster: Muster) -> None:
    keep(served, status("Running"))

    def goes(handler: Handler) -> None:
        keep(served, status("Succeeded"))
        served.fail("GET", f"{JOBS}/llama", lost, times=12)
        chunks(whole=False)(handler)

    served.fail("GET", JOBS, goes)
    ended = muster("watch", "llama")
    assert (ended.code, ended.err) == (0, "")
    assert "Succeeded" in ended.out


def test_the_end_of_a_job_is_reported_even_if_the_server_is_away_from_then_on(served: Server, muster: Muster) -> None:
    keep(served, status("Running"))

    def ends(handler: Handler) -> None:
        event = {"type": "MODIFIED", "object": keep(served, status("Succeeded"))}
        served.fail("GET", f"{JOBS}/llama", lost, times=10**9)
        chunks(f"{json.dumps(event)}\n")(handler)

    served.fail("GET", JOBS, ends)
    ended = muster("watch", "llama")
    assert (ended.code, ended.err) == (0, "")


def test_a_drain_is_waited_for_while_the_server_is_away(served: Server, muster: Muster) -> None:
    served.put(f"{NODES}/n1", {"metadata": {"name": "n1"}})
    keep(served, status("Running", placement=placement("n1")))

    def goes(handler: Handler) -> None:
        answered(handler)
        keep(served, status("Running", placement=placement("n2")))
        served.fail("GET", ALL_JOBS, lost, times=4)

    served.fail("GET", ALL_JOBS, answered)  # whether they may be listed
    served.fail("GET", ALL_JOBS, goes)
    ended = muster("drain", "n1", "--wait")
    assert (ended.code, ended.out) == (
        0,
        "node n1 is being drained; jobs to move: default/llama\nno job is left on node n1\n",
    )
