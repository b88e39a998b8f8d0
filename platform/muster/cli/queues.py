"""The commands queues, nodes, drain and undrain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import click

from muster.cli.connect import connect
from muster.cli.options import json_option
from muster.cli.output import console, print_json, print_renderable
from muster.client import ClusterClient

if TYPE_CHECKING:
    from muster.tables import NodeTableRow, QueueTableRow

_POLL_S = 1.0
_node_argument = click.argument("node", metavar="NODE", help="A node; see: muster nodes.")


@click.command()
@click.option("--watch", "-w", "follow", is_flag=True, help="Refresh every second.")
@json_option
def queues(follow: bool, as_json: bool) -> None:
    """Show the queue tree: used, guaranteed and borrowed resources."""
    from muster.cli.views.queues import queue_tree

    client = connect()
    rows = cast("list[QueueTableRow]", client.queues())
    if as_json:
        print_json(rows)
    elif not rows:
        print("No queues. Create some: muster apply QUEUES.yaml")
    elif follow and console().is_terminal:
        from rich.live import Live

        with Live(console=console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(queue_tree(rows, live.console.width), refresh=True)
                time.sleep(1.0)
                rows = cast("list[QueueTableRow]", client.queues())
    else:
        print_renderable(queue_tree(rows, console().width))


@click.command()
@json_option
def nodes(as_json: bool) -> None:
    """Show the nodes: flavor, used resources, state."""
    from muster.cli.views.queues import node_table

    rows = cast("list[NodeTableRow]", connect().nodes())
    if as_json:
        print_json(rows)
    else:
        print_renderable(node_table(rows, console().width))


@click.command()
@_node_argument
@click.option("--wait", is_flag=True, help="Return when no job is left on the node.")
@json_option
def drain(node: str, wait: bool, as_json: bool) -> None:
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


@click.command()
@_node_argument
@json_option
def undrain(node: str, as_json: bool) -> None:
    """Make a drained node schedulable again."""
    connect().undrain(node)
    if as_json:
        print_json([{"node": node, "result": "undrained", "jobs": []}])
    else:
        console().print(f"node {node} is schedulable again")


def _wait_until_empty(client: ClusterClient, node: str) -> None:
    """Wait without a limit, but for an unreachable API server no longer than `UNREACHABLE_TIMEOUT_S`."""
    from muster.errors import ClusterError, DaemonError
    from muster.kube.convert import WRONG_VERSION
    from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S

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
