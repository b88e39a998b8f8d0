"""The commands queues and nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, cast

import typer

from muster.cli.completion import JsonOption
from muster.cli.connect import connect
from muster.cli.output import console, print_json, print_renderable

if TYPE_CHECKING:
    from muster.cli.connect import NodeTableRow, QueueTableRow


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(queues)
    app.command()(nodes)


def queues(
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the queue tree: used, guaranteed and borrowed resources."""
    from muster.cli.views.queue_tree import queue_tree

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


def nodes(as_json: JsonOption = False) -> None:
    """Show the nodes: flavor, used resources, state."""
    from muster.cli.views.node_table import node_table

    rows = cast("list[NodeTableRow]", connect().nodes())
    if as_json:
        print_json(rows)
    else:
        print_renderable(node_table(rows, console().width))
