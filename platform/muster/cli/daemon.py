"""The commands `local up|down|status|snapshot`: the daemon that runs jobs on this host."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.completion import JsonOption
from muster.cli.help import HelpGroup, HelpTyper
from muster.cli.output import print_json, print_renderable

app = HelpTyper(
    cls=HelpGroup,
    help="The daemon that runs jobs on this host. Commands start it if needed, but not after `muster local down`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def up(
    nodes: Annotated[
        str | None,
        typer.Option(metavar="4x8", help="4 virtual nodes of 8 GPUs, for learning and tests; `host`: the real host."),
    ] = None,
    idle: Annotated[
        str | None, typer.Option(metavar="10m", help="Stop after this time without jobs and requests.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the daemon if it is not running."""
    from muster.cli.views.daemon_status import node_label_lines
    from muster.local.client import LocalClient
    from muster.text.humanize import parse_duration

    idle_s = None if idle is None else float(parse_duration(idle, "--idle"))
    _print_status(LocalClient.up(nodes=nodes, idle_s=idle_s).status(), as_json)
    for line in () if as_json or nodes is None else node_label_lines(nodes):
        print(f"  {line}")


@app.command()
def down(
    force: Annotated[
        bool, typer.Option("--force", help="Stop running jobs; they resume from their checkpoints at the next start.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
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


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show whether the daemon is running and what it runs. The exit code is 4 if it is not running."""
    from muster.local.client import LocalClient

    _print_status(LocalClient.connect(start=False).status(), as_json)


@app.command()
def snapshot(
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write; stdout without one.")] = Path("-"),
) -> None:
    """Save the scheduling snapshot of the last cycle. `muster replay OUT.json` plans it again."""
    from muster.local.client import LocalClient

    state = LocalClient.connect(start=False).snapshot()
    if str(out) == "-":
        sys.stdout.buffer.write(state + b"\n")
    else:
        out.write_bytes(state)
        print(f"wrote {out}; plan it again with: muster replay {out}")


def _print_status(daemon_status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        began = datetime.fromtimestamp(daemon_status["startedAt"], UTC).isoformat(timespec="seconds")
        print_json([daemon_status | {"startedAt": began.replace("+00:00", "Z")}])
        return
    from muster.cli.views.daemon_status import daemon_status_view

    print_renderable(daemon_status_view(daemon_status, time.time()))
