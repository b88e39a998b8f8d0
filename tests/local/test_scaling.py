"""A job of this host gets another number of pods while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.local.support import eventually, has, phase_of, shell_job

from muster.errors import Conflict, InvalidSpec, Refused
from muster.local.client import LocalClient


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClient]:
    client = LocalClient.up(tmp_path_factory.mktemp("scaling") / "home", nodes="4x2", idle_s=60)
    yield client
    client.down(force=True)


def live_pods(client: LocalClient, name: str) -> int:
    return sum(pod["phase"] == "Running" for pod in client.pods(name))


def test_a_running_job_is_scaled_down_and_up_without_a_failure(client: LocalClient) -> None:
    client.submit(shell_job("wide", "sleep 1000", replicas=4, failurePolicy={"maxRestarts": 0}))
    eventually(lambda: phase_of(client, "wide") == "Running")
    assert client.scale("wide", "default", {"trainer": 2}).spec.roles[0].replicas == 2
    eventually(lambda: phase_of(client, "wide") == "Running" and live_pods(client, "wide") == 2)
    client.scale("wide", "default", {"trainer": 3})
    eventually(lambda: phase_of(client, "wide") == "Running" and live_pods(client, "wide") == 3)
    status = client.job("wide").status
    assert (status.restarts, status.node_losses, status.last_failure) == (0, 0, None)


def test_scaling_changes_only_the_number_of_pods(client: LocalClient) -> None:
    client.submit(shell_job("still", "sleep 1000", replicas=4))
    before = client.suspend("still")
    after = client.scale("still", "default", {"trainer": 2})
    assert (after.spec.suspend, after.spec.roles[0].replicas) == (True, 2)
    assert after.spec.roles[0].template == before.spec.roles[0].template
    assert after.metadata.annotations == before.metadata.annotations
    with pytest.raises(InvalidSpec, check=has("1.5", field="trainer")):
        client.scale("still", "default", {"trainer": 1.5})  # type: ignore[dict-item]  # as another program may


def test_an_impossible_size_or_a_finished_job_is_refused(client: LocalClient) -> None:
    client.submit(shell_job("short", "sleep 1000", gpus=2, replicas=2))
    with pytest.raises(Refused, check=has("4 pods", reason="LargerThanCluster")):
        client.scale("short", "default", {"trainer": 40})
    with pytest.raises(InvalidSpec, match="replicas"):
        client.scale("short", "default", {"trainer": 0})
    assert client.job("short").spec.roles[0].replicas == 2
    client.cancel("short")
    eventually(lambda: phase_of(client, "short") == "Cancelled")
    with pytest.raises(Conflict, check=has("Cancelled")):
        client.scale("short", "default", {"trainer": 1})


def test_a_drain_is_refused(client: LocalClient) -> None:
    with pytest.raises(Refused, check=has("muster local down", reason="DrainUnsupported")):
        client.drain("node-0")
