"""The commands `drain` and `undrain`: move all jobs off a node for maintenance, and make it schedulable again."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from muster.cli.completion import JsonOption
from muster.cli.connect import ClusterClient, connect
from muster.cli.output import console, print_json

_POLL_S = 1.0

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node; see: muster nodes.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(drain)
    app.command()(undrain)


def drain(
    node: NodeArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when no job is left on the node.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Move the jobs of a node to other nodes after a checkpoint, and place no jobs there."""
    from muster.cli.views.job_text import qualified_name

    client = connect()
    jobs = client.drain(node)
    names = [qualified_name(job) for job in jobs]
    if not as_json:
        console().print(f"node {node} is being drained" + (f"; jobs to move: {', '.join(names)}" if names else ""))
    if wait:
        _wait_until_empty(client, node)
    if as_json:
        print_json([{"node": node, "result": "drained" if wait or not names else "draining", "jobs": names}])
    elif wait:
        console().print(f"no job is left on node {node}")


def undrain(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Make a drained node schedulable again."""
    connect().undrain(node)
    if as_json:
        print_json([{"node": node, "result": "undrained", "jobs": []}])
    else:
        console().print(f"node {node} is schedulable again")


def _wait_until_empty(client: ClusterClient, node: str) -> None:
    """Wait without a limit, but for an unreachable API server no longer than `UNREACHABLE_TIMEOUT_S`."""
    from muster.errors import ClusterError, DaemonError
    from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S
    from muster.kubernetes.decode import WRONG_VERSION

    deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        try:
            if not client.jobs_on_node(node):
                return
            deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
        except ClusterError as error:
            is_permanent = isinstance(error, DaemonError) or error.reason == WRONG_VERSION
            if is_permanent or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)
