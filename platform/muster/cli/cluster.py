"""The commands queues, nodes, drain and undrain, and `local up|down|status|snapshot` for the daemon on this host."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from muster.cli.options import PATH, SectionedGroup, connect, json_option
from muster.cli.output import console, print_json, print_notices, print_renderable
from muster.text import format_duration, parse_duration, pluralize

if TYPE_CHECKING:
    from muster.client import ClusterClient, NodeJobs
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
    print_notices(client)
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

    client = connect()
    rows = cast("list[NodeTableRow]", client.nodes())
    print_notices(client)
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
    client = connect()
    found = client.drain(node)
    moving = [*found.names]
    if found.hidden:
        moving.append(f"{pluralize(found.hidden, 'job')} of namespaces that you may not read")
    if not as_json:
        console().print(f"node {node} is being drained" + (f"; jobs to move: {', '.join(moving)}" if moving else ""))
    print_notices(client)
    if wait:
        _wait_until_empty(client, node)
    if as_json:
        result = "drained" if wait or _is_empty(found) else "draining"
        print_json([{"node": node, "result": result, "jobs": found.names, "hiddenJobs": found.hidden}])
    elif wait:
        console().print(f"no job is left on node {node}")


@click.command()
@_node_argument
@json_option
def undrain(node: str, as_json: bool) -> None:
    """Make a drained node schedulable again."""
    connect().undrain(node)
    if as_json:
        print_json([{"node": node, "result": "undrained", "jobs": [], "hiddenJobs": 0}])
    else:
        console().print(f"node {node} is schedulable again")


def _is_empty(found: NodeJobs) -> bool:
    return found.draining and not found.names and not found.hidden


def _wait_until_empty(client: ClusterClient, node: str) -> None:
    """Wait without a limit, but for an unreachable API server no longer than `UNREACHABLE_TIMEOUT_S`."""
    from muster.errors import ClusterError, DaemonError
    from muster.kube.convert import WRONG_VERSION
    from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S

    deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        try:
            if _is_empty(client.jobs_on_node(node)):
                return
            deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
        except ClusterError as error:
            is_permanent = isinstance(error, DaemonError) or error.reason == WRONG_VERSION
            if is_permanent or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


@click.group(cls=SectionedGroup)
def local() -> None:
    """The daemon that runs jobs on this host. Commands start it if needed, but not after `muster local down`."""


@click.command()
@click.option(
    "--nodes", metavar="4x8", help="4 virtual nodes of 8 GPUs, for learning and tests; `host`: the real host."
)
@click.option("--idle", metavar="10m", help="Stop after this time without jobs and requests.")
@json_option
def up(nodes: str | None, idle: str | None, as_json: bool) -> None:
    """Start the daemon if it is not running."""
    from muster.local.client import LocalClient

    idle_s = None if idle is None else float(parse_duration(idle, "--idle"))
    _print_status(LocalClient.up(nodes=nodes, idle_s=idle_s).status(), as_json)
    for line in () if as_json or nodes is None else node_label_lines(nodes):
        print(f"  {line}")


@click.command()
@click.option("--force", is_flag=True, help="Stop running jobs; they resume from their checkpoints at the next start.")
@json_option
def down(force: bool, as_json: bool) -> None:
    """Stop the daemon. Refused while jobs run, unless --force."""
    from muster.errors import DaemonError
    from muster.local.client import LocalClient

    try:
        client = LocalClient.connect(start=False)
    except DaemonError as error:
        if error.reason != "NotRunning":
            raise
        result = "no daemon is running"
    else:
        client.down(force)
        result = "stopped"
    if as_json:
        print_json([{"result": result}])
    else:
        print(result)


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether the daemon is running and what it runs. The exit code is 4 if it is not running."""
    from muster.local.client import LocalClient

    _print_status(LocalClient.connect(start=False).status(), as_json)


@click.command()
@click.argument("out", type=PATH, default=Path("-"), metavar="[OUT.json]", help="File to write; stdout without one.")
def snapshot(out: Path) -> None:
    """Save the scheduling snapshot of the last cycle. `muster replay OUT.json` plans it again."""
    from muster.local.client import LocalClient

    state = LocalClient.connect(start=False).snapshot()
    if str(out) == "-":
        sys.stdout.buffer.write(state + b"\n")
    else:
        out.write_bytes(state)
        print(f"wrote {out}; plan it again with: muster replay {out}")


local.add_section("Verbs", up, down, status, snapshot)


def _print_status(daemon_status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        began = datetime.fromtimestamp(daemon_status["startedAt"], UTC).isoformat(timespec="seconds")
        print_json([daemon_status | {"startedAt": began.replace("+00:00", "Z")}])
    else:
        for text, style in _status_lines(daemon_status, time.time()):
            console().print(text, style=style, markup=False)


def _status_lines(status: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """(text, style) of the daemon's version, nodes, jobs and home folder."""
    up_for = format_duration(now - float(status["startedAt"]))
    nodes = pluralize(status["nodes"], "node") + (f" ({status['shape']})" if status["virtual"] else "")
    counts = f"{pluralize(status['running'], 'job')} running, {status['waiting']} waiting"
    if status["suspended"]:
        counts += f", {status['suspended']} suspended"
    yield f"● daemon {status['version']}, pid {status['pid']}, up for {up_for}", "green"
    yield f"  {nodes}, {counts}", ""
    yield f"  {status['home']}", "dim"
    if status["virtual"]:
        yield f"  {status['note']}", "yellow"


def node_label_lines(shape: str) -> list[str]:
    """One line for each group of virtual nodes with labels set by the user."""
    from muster.local.nodes import HOST_SHAPE, parse_shape

    groups = parse_shape(shape) if shape != HOST_SHAPE else ()
    return [
        f"{group.count}x{group.gpus}: node labels {', '.join(f'{key}={value}' for key, value in group.labels.items())}"
        for group in groups
        if group.labels
    ]
