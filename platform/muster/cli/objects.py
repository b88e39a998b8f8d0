"""The commands apply and delete."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import click

from muster.cli.connect import connect, default_namespace
from muster.cli.options import FILE, json_option, namespace_option, split_job_name
from muster.cli.output import console, print_json, print_note, usage_error
from muster.client import ClusterClient
from muster.errors import Refused

_KINDS = {
    "Queue": ("queue", "queues", "mq"),
    "Flavor": ("flavor", "flavors"),
    "TrainingJob": ("trainingjob", "trainingjobs", "job", "jobs", "tj"),
}
_MAX_NAMES = 8
_RESULT_STYLES = {"created": "green", "configured": "yellow", "deleted": "red"}


@click.command()
@click.argument(
    "files", type=FILE, nargs=-1, required=True, metavar="FILE.yaml...", help="Files with objects; - is stdin."
)
@json_option
def apply(files: tuple[str, ...], as_json: bool) -> None:
    """Create or change the queues and flavors of files: all, or none."""
    from muster.cli.manifests import load_objects

    objects = [item for file in files for item in load_objects(file)]
    _print_results(connect().apply(objects), as_json)


@click.command()
@click.argument("kind", required=False, metavar="[KIND]", help="queue, flavor or job.")
@click.argument("names", nargs=-1, metavar="[NAME...]", help="Names of that kind.")
@click.option(
    "--file", "-f", "files", type=FILE, multiple=True, metavar="FILE.yaml", help="Delete the objects in a file."
)
@namespace_option
@click.option("--yes", "-y", is_flag=True, help="Delete queues that have unfinished jobs without asking.")
@json_option
def delete(
    kind: str | None, names: tuple[str, ...], files: tuple[str, ...], namespace: str | None, yes: bool, as_json: bool
) -> None:
    """Delete objects: all that are named, or none.

    A running job is stopped first; a queue is removed once no unfinished job uses it.
    """
    from muster.cli.manifests import load_objects

    targets: list[tuple[str, str, str]] = []
    if kind is not None:
        known = next((name for name, words in _KINDS.items() if kind.lower() in words), None)
        if known is None:
            usage_error(f"kind: must be queue, flavor or job; got {kind!r}", "kind")
        targets += [(known, *split_job_name(name, namespace)) for name in names]
    for file in files:
        targets += [
            (item.kind, item.metadata.name, item.metadata.namespace or default_namespace())
            for item in load_objects(file)
        ]
    if not targets:
        usage_error("must name a kind and objects (queue research) or use --file FILE.yaml; got neither")
    client, targets = connect(), list(dict.fromkeys(targets))
    if not yes:
        _confirm_delete(client, targets)
    rows = client.delete_all(_children_first(client, targets))
    _print_results(rows, as_json)
    for row in () if as_json else rows:
        if row["kind"] == "Queue" and row["result"] == "deleting":
            _print_blocking_jobs(client, row["name"])


def _confirm_delete(client: ClusterClient, targets: list[tuple[str, str, str]]) -> None:
    """Ask before queues with unfinished jobs are deleted. Raises `Refused` QueueInUse if the answer is not yes, or if
    stdin is not a terminal."""
    queues = {name for kind, name, _ in targets if kind == "Queue"}
    message = " ".join(
        _in_use_message(queue, names)
        for queue, labels in sorted(_unfinished_jobs_by_queue(client, queues).items())
        if (names := [label for label in labels if ("TrainingJob", *split_job_name(label)) not in targets])
    )
    if not message:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{message} Use --yes to delete it anyway; nothing was deleted", reason="QueueInUse")
    print_note(message)
    print("Delete? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was deleted", reason="QueueInUse")


def _in_use_message(queue: str, names: list[str]) -> str:
    jobs, ended = ("job", "the job has ended") if len(names) == 1 else ("jobs", "these jobs have ended")
    return (
        f"queue {queue} has {len(names)} unfinished {jobs}: {_abbreviate(names)}. "
        f"If deleted, it admits no further jobs and is removed when {ended}."
    )


def _print_blocking_jobs(client: ClusterClient, queue: str) -> None:
    """Print the jobs that block the removal of a queue, and what to do about them."""
    names = _unfinished_jobs_by_queue(client, {queue}).get(queue)
    if names:
        message = f"it is removed when these jobs have ended: {_abbreviate(names)}; to end one: muster cancel JOB"
        console().print(f"  {message}", soft_wrap=True, markup=False)


def _unfinished_jobs_by_queue(client: ClusterClient, queues: Collection[str]) -> dict[str, list[str]]:
    """Unfinished jobs by queue; empty if listing jobs is forbidden."""
    from muster.cli.views.job_text import is_over, qualified_name

    unfinished: dict[str, list[str]] = {}
    if not queues:
        return unfinished
    try:
        jobs = client.jobs()
    except Refused:
        return unfinished  # RBAC may allow deleting queues without listing jobs of all namespaces
    for job in jobs:
        if job.spec.queue in queues and not is_over(job):
            unfinished.setdefault(job.spec.queue, []).append(qualified_name(job))
    return unfinished


def _abbreviate(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def _children_first(client: ClusterClient, targets: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The targets with their queues reordered, children before parents, so that no parent is deleted first."""
    queues = [target for target in targets if target[0] == "Queue"]
    if len(queues) < 2:
        return targets
    try:
        order = {row["name"]: index for index, row in enumerate(client.queues())}  # parents first
    except Refused:
        return targets  # reading queues is forbidden: keep the given order
    ordered = iter(sorted(queues, key=lambda target: -order.get(target[1], 0)))
    return [next(ordered) if target[0] == "Queue" else target for target in targets]


def _print_results(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for row in rows:
        space = f"{row['namespace']}/" if row["kind"] == "TrainingJob" and row.get("namespace") else ""
        style = _RESULT_STYLES.get(row["result"], "dim")
        console().print(f"{row['kind'].lower()} {space}{row['name']} [{style}]{row['result']}[/]")
        for notice in row.get("notices", ()):
            print_note(f"warning: queue {row['name']!r}: {notice}")
