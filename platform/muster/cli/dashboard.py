"""The command dashboard."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from muster.cli.options import PlainOption, connect, json_option, selected_context
from muster.cli.output import print_json, print_note

if TYPE_CHECKING:
    from muster.client import ClusterClient


@click.command()
@click.option(
    "--port", cls=PlainOption, type=click.IntRange(0, 65535), default=0, metavar="PORT",
    help="Port on 127.0.0.1; default: a free one.",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@json_option
def dashboard(port: int, no_browser: bool, as_json: bool) -> None:
    """Serve pages with queues, jobs and nodes to your browser on this host, until Ctrl-C.

    The pages are read only, and show what you may read in the cluster. Their address contains a token: other users of
    this host cannot open them without it.
    """
    from muster.dashboard.server import DashboardServer
    from muster.errors import Refused

    client = connect()
    _check_read_api(client)
    try:
        opened = DashboardServer(client, _cluster_name(client), port, command=_command())
    except OSError as error:
        message = f"--port: must be a free port of 127.0.0.1; got {port}: {error.strerror}"
        raise Refused(message, field="--port", reason="PortUnavailable") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # results of analyses are removed then, too
    with opened as server, server.updates.running():
        if as_json:
            print_json([{"url": server.url}])
        else:
            print_note("serving until Ctrl-C; any user who has this address can read what you may read:")
            click.echo(server.url)
        sys.stdout.flush()
        if not (no_browser or as_json) and _has_display():
            webbrowser.open(server.single_use_url())
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _check_read_api(client: ClusterClient) -> None:
    """Raises `NotFound` ReadApiNotInstalled if the cluster does not have the read API, and as `read` does."""
    from muster.errors import NotFound
    from muster.visibility.types import BASE_PATH

    try:
        client.read(f"{BASE_PATH}/jobs?limit=1")
    except NotFound as error:
        message = "the cluster does not have the read API; install the chart with visibility.enabled=true"
        raise NotFound(message, reason="ReadApiNotInstalled") from error


def _cluster_name(client: ClusterClient) -> str:
    """The name of the context, or of this host."""
    if selected_context() is None:
        return "this host"
    from muster.cluster_client.client import KubernetesClusterClient

    assert isinstance(client, KubernetesClusterClient)
    return client.context_name or "cluster"


def _command() -> str:
    """`muster` with the options that select this cluster; empty for this host."""
    selected = selected_context()
    if selected is None:
        return ""
    kubeconfig = [] if selected.kubeconfig is None else ["--kubeconfig", selected.kubeconfig]
    context = [] if selected.context is None else ["--context", selected.context]
    return shlex.join(["muster", *(kubeconfig + context or ["--cluster", "kubernetes"])])


def _has_display() -> bool:
    """Whether a browser has a screen here: without one, some would run in the terminal."""
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and graphical
