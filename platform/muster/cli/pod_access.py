"""The commands exec and port-forward: into the pods of a running job."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import click

from muster.cli.logs import place_of_rank, refuse_array
from muster.cli.options import PlainOption, connect, job_argument, namespace_option, selected_context, split_job_name
from muster.cli.output import print_note, usage_error
from muster.client import ClusterClient
from muster.errors import Refused

_COUNT = click.IntRange(min=0)
_Pod = tuple[str, int]


@click.command("exec")
@click.option(
    "--rank", "-r", cls=PlainOption, type=_COUNT, metavar="R", help="In the pod of this rank; default: rank 0."
)
@click.option("--role", metavar="ROLE", help="In a pod of this role; default: the first.")
@click.option("--index", "-i", cls=PlainOption, type=_COUNT, metavar="N", help="In the pod of this index; default 0.")
@namespace_option
@job_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...", help="What to run, after --.")
def exec_command(
    job: str, command: tuple[str, ...], rank: int | None, role: str | None, index: int | None, namespace: str | None
) -> None:
    """Run a command in a pod of a running job, such as a shell: muster exec JOB -- bash.

    The exit code is that of the command. On this host it runs with the environment and in the folder of the pod.
    """
    if not command:
        usage_error("-- COMMAND: must not be empty, such as: muster exec JOB -- bash", "command")
    client, (name, space) = connect(), split_job_name(job, namespace)
    pod = _pod(client, (name, space), rank, role, index)
    sys.stdout.flush()
    code = client.run_in_pod(name, space, pod, command)
    sys.exit(128 - code if code < 0 else code)


@click.command("port-forward")
@job_argument
@click.argument("ports", metavar="PORT", help="A port of the pod; LOCAL:PORT makes it another one here.")
@click.option(
    "--rank", "-r", cls=PlainOption, type=_COUNT, metavar="R", help="Of the pod of this rank; default: rank 0."
)
@click.option("--role", metavar="ROLE", help="Of a pod of this role; default: the first.")
@click.option("--index", "-i", cls=PlainOption, type=_COUNT, metavar="N", help="Of the pod of this index; default 0.")
@namespace_option
def port_forward(
    job: str, ports: str, rank: int | None, role: str | None, index: int | None, namespace: str | None
) -> None:
    """Make a port of a pod, such as that of a notebook or TensorBoard, reachable on 127.0.0.1 until Ctrl-C."""
    local, _, remote = ports.rpartition(":")
    numbers = [_port(text) for text in (local or remote, remote)]
    client, (name, space) = connect(), split_job_name(job, namespace)
    pod = _pod(client, (name, space), rank, role, index)
    if selected_context() is None:
        raise Refused(f"job {name} runs on this host: connect to 127.0.0.1:{numbers[1]}", reason="NotNeeded")
    with _listening(numbers[0]) as listener, suppress(KeyboardInterrupt):
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        print_note(f"until Ctrl-C, {address} is port {numbers[1]} of {pod[0]}-{pod[1]} of {space}/{name}")
        client.forward_port(name, space, pod, listener, numbers[1])  # type: ignore[attr-defined]  # of a cluster


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        usage_error(f"PORT: must be a port from 1 to 65535, or LOCAL:PORT; got {text!r}", "ports")
    return int(text)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        message = f"port {port} of this host cannot be used: {error.strerror}; another one: LOCAL:PORT"
        raise Refused(message, field="ports", reason="PortInUse") from error


def _pod(client: ClusterClient, job: tuple[str, str], rank: int | None, role: str | None, index: int | None) -> _Pod:
    """(role, index) of the pod that the options name. Raises `Refused` NotRunning for a job without pods."""
    found = client.job(*job)
    refuse_array(found)
    if found.status.phase not in ("Running", "Admitted", "Terminating"):
        message = f"job {job[0]} has no pods: it is {found.status.phase}"
        raise Refused(message, reason="NotRunning")
    if rank is not None:
        if role is not None or index is not None:
            usage_error("--rank: must not be used with --role or --index, which it selects", "--rank")
        return place_of_rank(found, rank)
    return role or found.spec.roles[0].name, index or 0
