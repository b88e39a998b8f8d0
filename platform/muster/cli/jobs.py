"""The commands jobs, describe, cancel, suspend, resume and scale."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from muster.cli.job_selection import parse_selection, select_jobs, selection_options
from muster.cli.options import (
    PlainOption,
    complete_phases,
    connect,
    default_list_namespace,
    job_argument,
    json_option,
    namespace_option,
    queue_option,
    selected_context,
    split_job_name,
)
from muster.cli.output import console, print_json, print_note, print_notices, print_renderable, usage_error
from muster.client import ClusterClient
from muster.text import format_duration, pluralize

if TYPE_CHECKING:
    from muster.api.spec import QueueingStatus, RoleSpec, TrainingJob
    from muster.client import JobList

_MAX_DIGITS = 18  # Python refuses to parse integers of thousands of digits
_MAX_TEXT_SHOWN = 80
_SHOWN_AFTER_END_S = 86_400.0  # an ended job is listed by default


@click.command("jobs")
@namespace_option
@click.option("--all-namespaces", "-A", is_flag=True, help="Jobs of all namespaces; on this host the default.")
@queue_option
@click.option(
    "--phase",
    metavar="PHASE,...",
    help="Pending, Admitted, Running, Suspended, Terminating, Succeeded, Failed or Cancelled; several with commas.",
    shell_complete=complete_phases,
)
@click.option("--all", "-a", "show_all", is_flag=True, help="Also jobs that ended more than a day ago.")
@click.option("--ended", is_flag=True, help="Only jobs that have ended.")
@click.option("--since", metavar="7d", help="Of the ended jobs, those since this time, or duration ago; default 24h.")
@click.option("--limit", cls=PlainOption, type=click.IntRange(min=1), metavar="N", help="The first N jobs only.")
@click.option("--wide", "-w", is_flag=True, help="Whole reasons instead of one line per job.")
@json_option
def list_jobs(
    namespace: str | None, all_namespaces: bool, queue: str | None, phase: str | None, show_all: bool, ended: bool,
    since: str | None, limit: int | None, wide: bool, as_json: bool,
) -> None:  # fmt: skip
    """List jobs: running, waiting with the reason, and what ended in the last day."""
    from muster.cli.views.job_table import job_table, listed_job, listed_object, sorted_for_display
    from muster.text import parse_time

    now = time.time()
    if show_all and since is not None:
        usage_error("--since: must not be used with --all", "--since")
    earliest = None if since is None else parse_time(since, now, "--since")
    if earliest is None and not (show_all or as_json or ended or phase is not None):
        earliest = now - _SHOWN_AFTER_END_S
    phases = None if phase is None else _parse_phases(phase)
    of = None if all_namespaces else namespace or default_list_namespace()
    client = connect()
    listing = client.job_list(of)
    print_notices(client)
    jobs = [
        job
        for job in (*map(listed_job, listing.jobs), *map(listed_object, listing.objects))
        if (queue is None or job.queue == queue) and (phases is None or job.status.phase in phases)
    ]
    unreadable = [
        one for one in listing.unreadable if queue in (None, one.queue) and (phases is None or one.phase in phases)
    ]
    matching, total = jobs, len(jobs)
    jobs = [job for job in jobs if _is_shown(job.status, earliest, ended)]
    if limit is not None:
        jobs = sorted_for_display(jobs)[:limit]
    if queue is not None and not _has_jobs_in_queue(listing, queue):
        _check_queue_exists(client, queue)
    if as_json:
        print_json(
            [
                *(job.document for job in sorted_for_display(jobs)),
                *({**one.document, "unreadable": one.error} for one in unreadable),
            ]
        )
    elif jobs:
        print_renderable(job_table(jobs, now, console().width, wide=wide or not sys.stdout.isatty()))
    elif not unreadable and matching:
        print("No job has ended." if ended and since is None else "No job is running, waiting, or ended in this time.")
    elif not unreadable:
        shown = {"namespace": of, "queue": queue, "phase": phases and ",".join(sorted(phases))}
        print(_no_match_message(client, listing, {name: value for name, value in shown.items() if value}))
    if not as_json and len(jobs) < total and not ended and since is None:
        print_note(f"{pluralize(total - len(jobs), 'more job')} not shown; all: muster jobs --all")
    for one in () if as_json else unreadable:
        print_note(f"warning: job {one.name} cannot be read: {one.error}")


def _is_shown(status: QueueingStatus, earliest: float | None, ended_only: bool) -> bool:
    """Whether a job is listed: `earliest` is the earliest end of one that has ended."""
    if status.phase not in ("Succeeded", "Failed", "Cancelled"):
        return not ended_only
    return earliest is None or status.finished_at is None or status.finished_at >= earliest


def _has_jobs_in_queue(job_list: JobList, queue: str) -> bool:
    queues = {job.spec.queue for job in job_list.jobs} | {one.spec.queue for one in job_list.objects}
    return queue in queues or any(item.queue == queue for item in job_list.unreadable)


def _no_match_message(client: ClusterClient, job_list: JobList, filters: dict[str, str]) -> str:
    """The message for an empty table; `filters` holds the values of the given options by name."""
    from muster.errors import Refused

    where = ""
    if "namespace" in filters:
        try:
            job_list = client.job_list(None)
        except Refused:  # listing all namespaces is forbidden: count this namespace only
            where = f" in namespace {filters.pop('namespace')}"
    total = len(job_list.jobs) + len(job_list.unreadable) + len(job_list.objects)
    if not total:
        return f"No jobs{where}. Submit one: muster submit FILE.yaml"
    matched = ", ".join(f"{name} {value}" for name, value in filters.items())
    everywhere = "" if where else " in all namespaces"
    count = "1 job" if total == 1 else f"{total} jobs"
    return f"No jobs match {matched}{where}; there {'is' if total == 1 else 'are'} {count}{where or everywhere}."


def _check_queue_exists(client: ClusterClient, name: str) -> None:
    """Raises `NotFound` if the queue does not exist; does nothing if reading queues is forbidden."""
    from muster.errors import NotFound, Refused
    from muster.text import did_you_mean

    try:
        known = [row["name"] for row in client.queues()]
    except Refused:
        return
    if name not in known:
        hint = did_you_mean(name, known, f"existing queues: {', '.join(known[:8])}" if known else "no queue exists yet")
        raise NotFound(f"queue {name!r} does not exist; {hint}", field="--queue")


def _parse_phases(text: str) -> frozenset[str]:
    """Parse `Running,Pending`, case-insensitive. Raises `InvalidSpec` Usage that suggests the nearest phase."""
    from muster.cli.views.job_text import PHASE_STYLES
    from muster.text import did_you_mean

    names = [name.strip() for name in text.split(",") if name.strip()]
    valid = f"valid phases: {', '.join(PHASE_STYLES)}"
    if not names:
        usage_error(f"--phase: must name at least one phase; got {text!r}; {valid}", "--phase")
    for name in names:
        if name.capitalize() not in PHASE_STYLES:
            hint = did_you_mean(name.capitalize(), PHASE_STYLES, valid)
            usage_error(f"--phase: unknown phase {name!r}; {hint}", "--phase")
    return frozenset(name.capitalize() for name in names)


@click.command()
@job_argument
@namespace_option
@json_option
def describe(job: str, namespace: str | None, as_json: bool) -> None:
    """Show one job: its status, why it waits, its nodes and its events. Of another kind than TrainingJob: what queues
    of that name."""
    from muster.cli.views.goodput import goodput_text, job_goodput
    from muster.cli.views.jobs import JobDetails, job_details_view
    from muster.cli.views.object_details import object_details_view
    from muster.errors import NotFound
    from muster.heartbeats.progress import leading_heartbeat, progress_from_heartbeat
    from muster.local.environment import WORKING_DIRECTORY_ANNOTATION, working_directory
    from muster.tracing.runs.trackers import find_trackers

    client, (name, space) = connect(), split_job_name(job, namespace)
    try:
        found = client.live_job(name, space)
    except NotFound:
        objects = [one for one in client.job_list(space).objects if one.spec.object_ref.name == name]
        if not objects:
            raise
        print_notices(client)
        if as_json:
            print_json(objects)
        for one in () if as_json else objects:
            print_renderable(object_details_view(one, time.time()))
        return
    print_notices(client)
    heartbeats = client.heartbeats(name, space)
    if as_json:
        leading = leading_heartbeat(heartbeats)
        if found.status.progress is None and leading is not None:  # of this host, where no status has it
            progress = progress_from_heartbeat(leading)
            found = found.model_copy(update={"status": found.status.model_copy(update={"progress": progress})})
        print_json([found])
        return
    run_dir, now = client.run_dir(name, space), time.time()
    is_of_this_host = run_dir is not None and WORKING_DIRECTORY_ANNOTATION in found.metadata.annotations
    details = JobDetails(
        job=found,
        events=client.events(name, space),
        heartbeats=heartbeats,
        run_dir=run_dir,
        trackers=find_trackers(run_dir) if run_dir is not None else (),
        now=now,
        goodput=goodput_text(job_goodput(client, found, now)),
        code_dir=working_directory(found, found.spec.roles[0].template.spec.containers[0]) if is_of_this_host else "",
    )
    print_renderable(job_details_view(details))


@click.command()
@selection_options
def cancel(**given: Any) -> None:
    """Cancel jobs: SIGTERM, time for a checkpoint, then SIGKILL. Their records and logs are kept."""
    _apply_to_jobs(given, "cancelled", lambda client: client.cancel)


@click.command()
@selection_options
def suspend(**given: Any) -> None:
    """Stop jobs after a checkpoint and release their resources until they are resumed."""
    _apply_to_jobs(given, "suspended", lambda client: client.suspend)


@click.command()
@selection_options
def resume(**given: Any) -> None:
    """Queue suspended jobs again; they resume from their last checkpoint."""
    _apply_to_jobs(given, "resumed", lambda client: client.resume)


_APPLIES: dict[str, Callable[[TrainingJob], bool]] = {
    "cancelled": lambda job: not (job.spec.cancel or _has_ended(job)),
    "suspended": lambda job: not (job.spec.suspend or job.spec.cancel or _has_ended(job)),
    "resumed": lambda job: job.spec.suspend and not _has_ended(job),
}
"""Which jobs that match options are acted on; named ones always are, or are refused."""


def _has_ended(job: TrainingJob) -> bool:
    from muster.workload.conditions import is_finished

    return is_finished(job.status)


def _apply_to_jobs(
    given: dict[str, Any],
    past_tense: str,
    get_action: Callable[[ClusterClient], Callable[[str, str], object]],
) -> None:
    """Act on all jobs or none: if one of several does not exist, no job is changed. One that has ended needs no stop;
    it is an error only if all have, or if jobs are resumed."""
    from muster.errors import Conflict

    selection, as_json = parse_selection(given, _parse_phases), given["as_json"]
    client = connect()
    keys = select_jobs(client, selection, past_tense, _APPLIES[past_tense])
    if len(keys) > 1:
        _check_actionable(client, keys, past_tense)
    ended: list[Conflict] = []
    for key in keys:
        outcome = _outcome_of_cancel(client.job(*key)) if past_tense == "cancelled" else past_tense
        try:
            get_action(client)(*key)
        except Conflict as error:
            if error.reason != "JobFinished" or past_tense == "resumed":
                raise
            ended.append(error)
            if len(ended) == len(keys):
                raise
            outcome = "has already ended"
        if not as_json:
            console().print(f"trainingjob {key[1]}/{key[0]} {outcome}")
    if as_json:
        print_json([client.job(*key) for key in keys])


def _outcome_of_cancel(before: TrainingJob) -> str:
    """The result of a cancel that is printed, from the job before it; the processes stop later."""
    from muster.workload.conditions import has_terminated

    if not before.spec.cancel:
        return "is being cancelled"
    return "already cancelled" if has_terminated(before.status) else "is already being cancelled"


def _check_actionable(client: ClusterClient, keys: list[tuple[str, str]], past_tense: str) -> None:
    """Raises `Refused` naming every job that cannot be acted on. Of jobs that are stopped, some may have ended."""
    from muster.api.validation import check_unfinished, resumed_in_vain
    from muster.errors import Conflict, NotFound, Refused

    errors: list[Refused] = []
    deleting: set[str] = set()  # in a cluster, the operator checks this
    if past_tense == "resumed" and selected_context() is None:
        deleting = {row["name"] for row in client.queues() if row.get("reason") == "Deleting"}
    for key in keys:
        try:
            job = client.job(*key)
            if not (past_tense == "cancelled" and job.spec.cancel):  # a repeated cancel is allowed
                check_unfinished(job, stopping=True)
        except (NotFound, Conflict) as error:
            errors.append(error)
        else:
            if job.spec.suspend and job.spec.queue in deleting:
                errors.append(resumed_in_vain(job))
    missing = [error for error in errors if error.reason != "JobFinished"]
    if errors and (missing or past_tense == "resumed" or len(errors) == len(keys)):
        first = [*missing, *errors][0]
        raise type(first)(f"{'; '.join(map(str, errors))}; nothing was {past_tense}", reason=first.reason)


@click.command()
@job_argument
@click.argument("replicas", nargs=-1, required=True, metavar="[ROLE=]N...", help="Number of pods of a role.")
@namespace_option
@json_option
def scale(job: str, replicas: tuple[str, ...], namespace: str | None, as_json: bool) -> None:
    """Change the number of pods of a job. A running job restarts from a checkpoint at its new size."""
    client, (name, space) = connect(), split_job_name(job, namespace)
    before = client.job(name, space)
    requested = dict(_parse_replicas(text, before) for text in replicas)
    after = client.scale(name, space, requested)
    if as_json:
        print_json([after])
        return
    for role in after.spec.roles:
        if role.name in requested:
            count = pluralize(role.replicas, "replica")
            minimum = f", and starts with {role.min_replicas} or more" if role.is_elastic else ""
            message = f"trainingjob {space}/{name}: role {role.name} has {count}{minimum}"
            console().print(f"{message}{_growth_note(after, role, time.time())}", soft_wrap=True)


def _growth_note(job: TrainingJob, role: RoleSpec, now: float) -> str:
    """When an elastic role that runs with fewer pods can grow; empty for other roles."""
    running = job.status.elastic_replicas or 0
    if not role.is_elastic or not 0 < running < role.replicas:
        return ""
    from muster.model import GROWTH_REST_S

    since = max(job.status.admitted_at or 0.0, job.status.resized_at or 0.0)
    wait_s = since + GROWTH_REST_S - now
    earliest = f", in {format_duration(wait_s)} at the earliest" if wait_s > 0 else ""
    return f"; {running} running now: it grows into free resources that no pending job can use{earliest}"


def _parse_replicas(text: str, job: TrainingJob) -> tuple[str, int]:
    """(role, number) of `4` or `trainer=4`; a number alone is for the only role."""
    role, _, number = text.rpartition("=")
    if len(number) > _MAX_DIGITS or not number.isdecimal() or int(number) < 1:
        shown = repr(text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}...")
        usage_error(f"[ROLE=]N: must be a positive number of pods such as 4 or trainer=4; got {shown}", "replicas")
    names = [item.name for item in job.spec.roles]
    if not role and len(names) > 1:
        usage_error(f"[ROLE=]N: must name one of the job's roles: {', '.join(f'{n}={number}' for n in names)}")
    return role or names[0], int(number)
