"""Logs that the dashboard's Service shows: of pods only, with the user's token, and never more than fits in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cluster_client.server import JOBS, Server, serving

from muster.client import ClusterClient, LogOptions
from muster.dashboard.pages import PAGES
from muster.dashboard.render import Renderer
from muster.dashboard.users import TokenPages
from muster.errors import NotFound
from muster.kube.config import ClientConfig

ROLE = {"name": "worker", "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
TAIL = LogOptions(tail_lines=200)


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as api:
        yield api


@pytest.fixture
def client(api: Server) -> ClusterClient:
    """With which the Service reads for the owner of a token."""
    headers = {"Authorization": "Bearer token-a"}
    config = ClientConfig(f"http://127.0.0.1:{api.port}", None, lambda: headers)
    return TokenPages(config, Renderer(PAGES, "prod"), threading.Semaphore())._client


def put_job(api: Server, phase: str, location: str) -> None:
    status: dict[str, Any] = {"phase": phase, "attempt": 1, "traces": {"location": location}}
    if phase == "Succeeded":
        at = "2026-11-21T10:00:00Z"
        status["conditions"] = [{"type": "Complete", "status": "True", "reason": "Complete", "lastTransitionTime": at}]
    document = {"metadata": {"name": "llama", "namespace": "default"}, "spec": {"roles": [ROLE]}, "status": status}
    api.put(f"{JOBS}/llama", {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", **document})


def test_no_store_is_read_with_the_credentials_of_the_server(
    api: Server, client: ClusterClient, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    for attempt in (0, 1):
        (tmp_path / "logs" / f"worker-0.attempt-{attempt}.log").write_text("stored\n")
    put_job(api, "Succeeded", f"file://{tmp_path}")
    assert list(client.log_lines("llama", "default", "worker", 0, TAIL)) == []
    with pytest.raises(NotFound, match="its pods and logs are deleted"):
        client.log_lines("llama", "default", "worker", 0, LogOptions(attempt=0))


def test_a_log_is_read_up_to_a_number_of_bytes_with_the_users_token(api: Server, client: ClusterClient) -> None:
    requested: list[tuple[dict[str, list[str]], str]] = []

    def answer(handler: Any) -> None:
        requested.append((parse_qs(urlsplit(handler.path).query), handler.headers["Authorization"]))
        handler.say(200, {"a": "line"})

    put_job(api, "Running", "")
    api.fail("GET", r"/api/v1/namespaces/default/pods/[^/]+/log", answer)
    assert len(list(client.log_lines("llama", "default", "worker", 0, TAIL))) == 1
    ((query, login),) = requested
    assert (query["limitBytes"], query["tailLines"], login) == (["1048576"], ["200"], "Bearer token-a")
