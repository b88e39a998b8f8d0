"""The command dashboard before it serves: what it refuses. The pages are tested in tests/dashboard."""

from __future__ import annotations

import socket

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.dashboard.serving import ReadStateClient
from tests.visibility.states import leader, two_queues


def test_a_cluster_without_the_read_api_is_refused_with_what_to_install(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("dashboard", "--no-browser", "--json")
    assert (ended.code, ended.out, ended.error["reason"]) == (3, "", "ReadApiNotInstalled")
    assert "visibility.enabled=true" in ended.error["message"]


def test_a_port_that_is_taken_is_named(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ReadStateClient(state=leader(two_queues()))
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: client)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = muster("dashboard", "--no-browser", "--json", "--port", str(port))
    assert (ended.code, ended.error["reason"], ended.error["field"]) == (3, "PortUnavailable", "--port")
    assert str(port) in ended.error["message"]


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_an_invalid_port_is_refused(muster: Muster, port: str) -> None:
    ended = muster("dashboard", "--json", "--port", port)
    assert (ended.code, ended.error["field"]) == (2, "--port")
