"""The verbs `drain` and `undrain`: empty a node for repair without a failure, and give it back."""

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
    """Add the verbs of this file."""
    app.command()(drain)
    app.command()(undrain)


def drain(
    node: NodeArgument,
    wait: Annotated[bool, typer.Option("--wait", help="End once no job is left on it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have the jobs on a node go on elsewhere, and none come. They write a checkpoint first."""
    from muster.cli.views.job_text import qualified_name

    client = connect()
    jobs = client.drain(node)
    names = [qualified_name(job) for job in jobs]
    if not as_json:
        console().print(f"node {node} is being drained" + (f"; leaves: {', '.join(names)}" if names else ""))
    if wait:
        _wait_until_empty(client, node)
    if as_json:
        print_json([{"node": node, "result": "drained" if wait or not names else "draining", "jobs": names}])
    elif wait:
        console().print(f"no job is left on node {node}")


def undrain(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Let jobs come to a node again."""
    connect().undrain(node)
    if as_json:
        print_json([{"node": node, "result": "undrained", "jobs": []}])
    else:
        console().print(f"node {node} takes jobs again")


def _wait_until_empty(client: ClusterClient, node: str) -> None:
    """For as long as it takes; an API server that does not answer is given the time of its upgrade."""
    from muster.errors import ClusterError, DaemonError
    from muster.kubernetes.decode import WRONG_VERSION
    from muster.kubernetes.kube_client import UNREACHABLE_TIMEOUT_S

    patience = time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        try:
            if not client.jobs_on_node(node):
                return
            patience = time.monotonic() + UNREACHABLE_TIMEOUT_S
        except ClusterError as error:
            lasting = isinstance(error, DaemonError) or error.reason == WRONG_VERSION
            if lasting or time.monotonic() > patience:
                raise
        time.sleep(_POLL_S)
