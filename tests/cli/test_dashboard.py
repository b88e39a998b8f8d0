"""The command dashboard before it serves: what it refuses. The pages are tested in tests/dashboard."""

from __future__ import annotations

import contextvars
import os
import signal
import socket

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.dashboard.serving import ReadStateClient
from tests.visibility.states import leader, two_queues

from muster.cli.dashboard import _command
from muster.cli.options import ClusterOptions, select_cluster
from muster.dashboard.server import DashboardServer


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


def test_sigterm_ends_the_dashboard_as_ctrl_c_does(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the results of its analyses are removed."""
    before = signal.getsignal(signal.SIGTERM)
    closed: list[DashboardServer] = []
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: ReadStateClient(state=leader(two_queues())))

    def close(server: DashboardServer) -> None:
        closed.append(server)

    def terminate(server: DashboardServer) -> None:
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(DashboardServer, "server_close", close)
    monkeypatch.setattr(DashboardServer, "serve_forever", terminate)
    try:
        ended = muster("dashboard", "--no-browser", "--json")
    finally:
        signal.signal(signal.SIGTERM, before)
        for server in closed:
            server.socket.close()
    assert (ended.code, len(closed)) == (0, 1)


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_an_invalid_port_is_refused(muster: Muster, port: str) -> None:
    ended = muster("dashboard", "--json", "--port", port)
    assert (ended.code, ended.error["field"]) == (2, "--port")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (ClusterOptions(), ""),
        (ClusterOptions(cluster="kubernetes"), "muster --cluster kubernetes"),
        (ClusterOptions(context="prod eu"), "muster --context 'prod eu'"),
        (ClusterOptions(context="prod", kubeconfig="/k"), "muster --kubeconfig /k --context prod"),
    ],
)
def test_commands_on_pages_select_the_cluster_that_the_command_selected(options: ClusterOptions, command: str) -> None:
    def selected() -> str:
        select_cluster(options)
        return _command()

    assert contextvars.copy_context().run(selected) == command
