"""The routes of the read API on the daemon's socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import eventually, has, shell_job

from muster.errors import InvalidSpec, NotFound
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.local.daemon_client import request
from muster.local.server import DaemonServer
from muster.visibility.types import BASE_PATH

UNTIL_STOPPED = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
def socket(tmp_path: Path, parts: DaemonComponents, loop: ControlLoop) -> Iterator[Path]:
    """The socket of a server for the daemon's parts."""
    server = DaemonServer(tmp_path / "socket", parts.service, loop)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield tmp_path / "socket"
    server.shutdown()
    thread.join()
    server.server_close()


def test_running_pending_and_preempted_jobs_are_served(
    socket: Path, parts: DaemonComponents, loop: ControlLoop
) -> None:
    def items(route: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = request(socket, "GET", f"{BASE_PATH}/{route}")["items"]
        return found

    def after_a_cycle(route: str) -> list[dict[str, Any]]:
        loop._run_cycle()
        return items(route)

    low, high, last = (shell_job(name, UNTIL_STOPPED, gpus=8, priority=n) for n, name in enumerate(("c", "b", "a")))
    parts.service.submit([low], dry_run=False)
    eventually(lambda: after_a_cycle("jobs")[0]["phase"] == "Running")
    (node,) = items("nodes")
    assert (node["used"]["nvidia.com/gpu"], node["podCount"], len(node["pods"])) == ("8", 1, 1)
    parts.service.submit([high], dry_run=False)
    (preempted,) = eventually(lambda: after_a_cycle("preemptions"))
    assert (preempted["metadata"]["name"], preempted["reason"]) == ("c", "Preempted")
    assert "default/b" in preempted["message"]
    eventually(lambda: [job["phase"] for job in after_a_cycle("jobs")] == ["Running", "Pending"])
    (waiting,) = items("namespaces/default/pendingjobs")
    assert (waiting["metadata"]["name"], waiting["position"]) == ("c", 1)
    parts.service.submit([last], dry_run=False)
    eventually(lambda: len(after_a_cycle("preemptions")) == 2)
    assert [one["metadata"]["name"] for one in items("preemptions")] == ["b", "c"]
    page = request(socket, "GET", f"{BASE_PATH}/jobs?limit=2")
    assert ([one["metadata"]["name"] for one in page["items"]], page["metadata"]["remainingItemCount"]) == (
        ["a", "b"], 1,
    )  # fmt: skip
    assert (page["source"]["identity"], page["source"]["leading"]) == ("daemon", True)
    assert int(page["source"]["cycle"]) > 3


def test_unknown_routes_and_parameters_are_refused_with_their_names(socket: Path) -> None:
    with pytest.raises(InvalidSpec, check=has("got 'many'", reason="BadRequest", field="limit")):
        request(socket, "GET", f"{BASE_PATH}/jobs?limit=many")
    with pytest.raises(NotFound, check=has("resources: queues", reason="UnknownEndpoint")):
        request(socket, "GET", f"{BASE_PATH}/pods")
    with pytest.raises(NotFound, check=has("'none' does not exist in namespace 'default'")):
        request(socket, "GET", f"{BASE_PATH}/namespaces/default/jobs/none")
