"""The commands submit, apply and delete: objects of manifests, with options that override fields of jobs."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import (
    FILE,
    connect,
    default_namespace,
    json_option,
    namespace_option,
    queue_option,
    selected_context,
    split_job_name,
)
from muster.cli.output import CommandExit, ExitCode, console, print_json, print_note, usage_error
from muster.client import ClusterClient
from muster.errors import InvalidSpec, MusterError, Refused

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob
    from muster.cli.manifests import LoadedJob

_KINDS = {
    "Queue": ("queue", "queues", "mq"),
    "Flavor": ("flavor", "flavors"),
    "TrainingJob": ("trainingjob", "trainingjobs", "job", "jobs", "tj"),
}
_MAX_NAMES = 8
_MIN_CHECKED_NAME = 9
_POLL_S = 0.2
_RESULT_STYLES = {"created": "green", "configured": "yellow", "deleted": "red"}


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"must be an integer such as 10 or -5; got {text!r}") from None


@click.command()
@click.argument(
    "files", type=FILE, nargs=-1, required=True, metavar="FILE.yaml...", help="Files with TrainingJobs; - is stdin."
)
@click.option("--name", metavar="NAME", help="Name of the job, instead of that in the file.")
@click.option("--replace", is_flag=True, help="Delete jobs of the same names first; running ones are stopped.")
@queue_option
@click.option("--priority", type=_parse_int, metavar="N", help="Priority within the queue; higher first.")
@click.option("--max-runtime", metavar="2h", help="Maximum run time; enables backfill.")
@click.option("--trace-steps", metavar="20:25", help="Trace steps 20 to 24.")
@namespace_option
@click.option(
    "--env", multiple=True, metavar="NAME", help="Pass a variable of your environment, or NAME=VALUE. Repeatable."
)
@click.option("--oversubscribe", is_flag=True, help="On this host: allow more processes than CPU cores or GPUs.")
@click.option("--dry-run", is_flag=True, help="Validate the jobs without submitting them.")
@click.option("--wait", is_flag=True, help="Wait until the jobs end; exit code 1 if one failed.")
@click.option("--watch", "-w", "follow", is_flag=True, help="Submit one job and watch it.")
@json_option
def submit(
    files: tuple[str, ...],
    name: str | None,
    replace: bool,
    queue: str | None,
    priority: int | None,
    max_runtime: str | None,
    trace_steps: str | None,
    namespace: str | None,
    env: tuple[str, ...],
    oversubscribe: bool,
    dry_run: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Submit the jobs of YAML files: all of them, or none. In a cluster also objects of other kinds that queue."""
    from muster.cli.manifests import (
        SpecOverrides,
        check_trainer_flags,
        load_jobs,
        locate_errors,
        parse_env_overrides,
        read_manifest,
    )
    from muster.cli.other_kinds import read_other_kinds, submit_other_kinds
    from muster.cli.watch import print_end_and_reason, wait_for_end, watch_job

    names, values = parse_env_overrides(env, on_host=selected_context() is None)
    overrides = SpecOverrides(queue, priority, max_runtime, trace_steps, namespace, oversubscribe, names, values, name)
    texts = [(file, read_manifest(file)) for file in files]
    others = read_other_kinds(texts, overrides)
    if others:
        if wait or follow or name is not None or replace:
            usage_error("--wait, --watch, --name and --replace are for TrainingJobs", "--wait")
        submit_other_kinds(connect(), others, dry_run=dry_run, as_json=as_json)
        return
    read = [job for file, text in texts for job in load_jobs(file, overrides, text)]
    if name is not None and len(read) != 1:
        usage_error(f"--name: must be used with one job; the files contain {len(read)}", "--name")
    _check_unique_names(read)
    if follow and len(read) != 1:
        usage_error(f"--watch: must be used with one job; the files contain {len(read)}; use --wait", "--watch")
    client = connect()
    with locate_errors(read):
        for one in read:
            check_trainer_flags(one)
        jobs = [one.job for one in read]
        accepted = _submit_replacements(client, jobs, dry_run) if replace else client.submit_all(jobs, dry_run)
    if not as_json and (omitted := client.newly_omitted(accepted)):
        print_note(f"note: {omitted.message('--env ')}")
    if selected_context() is not None:
        for job in accepted:
            _warn_if_untraceable(job)
    if as_json and not wait:
        print_json(accepted)
    for job in () if as_json else accepted:
        _print_submitted(job, dry_run, quiet=follow)
    if dry_run:
        return
    if follow:
        watch_job(client, *_name_and_namespace(accepted[0]))
    elif wait:
        ended = [wait_for_end(client, *_name_and_namespace(job), quiet=as_json) for job in accepted]
        if as_json:
            print_json(ended)
        for job in () if as_json else ended:
            print_end_and_reason(job)
        if any(job.status.phase != "Succeeded" for job in ended):
            raise CommandExit(ExitCode.JOB_FAILED)


def _submit_replacements(client: ClusterClient, jobs: list[TrainingJob], dry_run: bool) -> list[TrainingJob]:
    """Submit jobs after those of the same names are deleted. Raises as `submit_all` does if one of `jobs` would be
    refused, before anything is deleted."""
    from muster.errors import NotFound

    existing: dict[tuple[str, str], str] = {}  # uids
    for job in jobs:
        key = (job.metadata.name, job.metadata.namespace or default_namespace())
        with suppress(NotFound):
            existing[key] = client.job(*key).metadata.uid
    checked = _check_replacements(client, jobs, existing)
    if dry_run:
        return checked
    targets = [("TrainingJob", *key) for key in existing]
    if targets:
        _confirm_delete(client, targets)
        client.delete_all(targets)
    for key, uid in existing.items():
        with suppress(NotFound):
            while client.job(*key).metadata.uid == uid:
                time.sleep(_POLL_S)
    return client.submit_all(jobs)


def _check_replacements(
    client: ClusterClient, jobs: list[TrainingJob], existing: Collection[tuple[str, str]]
) -> list[TrainingJob]:
    """The jobs as they would be submitted. Those that exist are checked under another name."""
    from muster.api.job_documents import with_suffix

    names = [job.metadata.name for job in jobs]
    taken = {name for name, _ in existing}
    others = [
        with_suffix(name, secrets.token_hex(3), max(len(name), _MIN_CHECKED_NAME)) if name in taken else name
        for name in names
    ]
    try:
        accepted = client.submit_all(list(map(_renamed, jobs, others)), dry_run=True)
    except (InvalidSpec, Refused) as error:
        for job, other in zip(jobs, others, strict=True):
            namespace = job.metadata.namespace or "default"
            if error.job == f"{namespace}/{other}":
                error.job = f"{namespace}/{job.metadata.name}"
        raise
    return list(map(_renamed, accepted, names))


def _renamed(job: TrainingJob, name: str) -> TrainingJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})})


def _check_unique_names(jobs: list[LoadedJob]) -> None:
    """Raises `InvalidSpec` for a duplicate name, before the first of the two is submitted."""
    seen: dict[str, LoadedJob] = {}
    for one in jobs:
        first = seen.setdefault(one.name, one)
        if first is not one:
            field = "metadata.name"
            places = f"{first.source.location(field)} and {one.source.location(field)}"
            message = f"{field}: must be unique; two jobs are named {one.name} ({places})"
            raise InvalidSpec(message, field=field)


def _warn_if_untraceable(job: TrainingJob) -> None:
    """A warning, since a script in a cluster may record traces itself; one host reads it and refuses the job."""
    from muster.local.command_lines import records_traces
    from muster.tracing import RECORDED_BY

    containers = [role.template.spec.containers[0] for role in job.spec.roles]
    if job.spec.trace and not any(records_traces([*one.command, *one.args], "") for one in containers):
        print_note(f"warning: job {job.metadata.name}: spec.trace may record nothing: {RECORDED_BY}")


def _print_submitted(job: TrainingJob, dry_run: bool, quiet: bool) -> None:
    from muster.cli.views.job_text import command_argument, qualified_name

    result = "would be submitted" if dry_run else "submitted"
    console().print(f"trainingjob {qualified_name(job.metadata)} {result} to queue {job.spec.queue}")
    if not dry_run and not quiet:
        console().print(f"to follow it: muster watch {command_argument(job)}", style="dim")


def _name_and_namespace(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.name, job.metadata.namespace or "default"


@click.command()
@click.argument(
    "files", type=FILE, nargs=-1, required=True, metavar="FILE.yaml...", help="Files with objects; - is stdin."
)
@json_option
def apply(files: tuple[str, ...], as_json: bool) -> None:
    """Create or change the queues, flavors and jobs of files: all, or none."""
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
@click.option("--yes", "-y", is_flag=True, help="Delete running jobs, and queues with unfinished jobs, unasked.")
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
    """Ask before queues with unfinished jobs are deleted, and, if stdin is a terminal, before running jobs are. Raises
    `Refused` NotConfirmed if the answer is not yes, and QueueInUse for such queues if stdin is not a terminal."""
    queues = {name for kind, name, _ in targets if kind == "Queue"}
    messages = [
        _in_use_message(queue, names)
        for queue, labels in sorted(_unfinished_jobs_by_queue(client, queues).items())
        if (names := [label for label in labels if ("TrainingJob", *split_job_name(label)) not in targets])
    ]
    if not sys.stdin.isatty():
        if messages:
            message = f"{' '.join(messages)} Use --yes to delete it anyway; nothing was deleted"
            raise Refused(message, reason="QueueInUse")
        return
    if running := _running_jobs(client, targets):
        messages.append(_running_message(running))
    if not messages:
        return
    print_note(" ".join(messages))
    print("Delete? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was deleted", reason="NotConfirmed")


def _running_jobs(client: ClusterClient, targets: list[tuple[str, str, str]]) -> list[str]:
    """The jobs among the targets that have capacity, such as `default/llama`."""
    running: list[str] = []
    for kind, name, namespace in targets:
        if kind == "TrainingJob":
            with suppress(MusterError):  # missing, or not readable, which does not prevent its deletion
                if client.job(name, namespace).status.phase in ("Admitted", "Running"):
                    running.append(f"{namespace}/{name}")
    return running


def _running_message(names: list[str]) -> str:
    jobs, them = (f"job {names[0]} is", "it") if len(names) == 1 else (f"jobs {_abbreviate(names)} are", "them")
    records = "its record" if len(names) == 1 else "their records"
    return f"{jobs} running. If deleted, {records} and events are lost; to stop {them} only: muster cancel JOB."


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
            unfinished.setdefault(job.spec.queue, []).append(qualified_name(job.metadata))
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
