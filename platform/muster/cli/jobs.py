"""The commands jobs, describe, cancel, suspend, resume and scale."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from muster.cli.job_selection import parse_selection, select_jobs, selection_options
from muster.cli.options import (
    connect,
    job_argument,
    json_option,
    namespace_option,
    selected_context,
    split_job_name,
)
from muster.cli.output import console, print_json, print_notices, print_renderable, usage_error
from muster.client import ClusterClient
from muster.text import format_duration, pluralize

if TYPE_CHECKING:
    from muster.api.spec import RoleSpec, TrainingJob, WorkloadRecord

_MAX_DIGITS = 18  # Python refuses to parse integers of thousands of digits
_MAX_TEXT_SHOWN = 80
_SHOWN_AFTER_END_S = 86_400.0  # an ended job is listed by default


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

    selection, as_json = parse_selection(given), given["as_json"]
    client = connect()
    keys = select_jobs(client, selection, past_tense, _APPLIES[past_tense])
    if len(keys) > 1:
        _check_actionable(client, keys, past_tense)
    ended: list[Conflict] = []
    for key in keys:
        found = client.job_or_object(*key)
        outcome = _outcome_of_cancel(found) if past_tense == "cancelled" else past_tense
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
            console().print(f"{_kind(found).lower()} {key[1]}/{key[0]} {outcome}")
    if as_json:
        print_json([client.job_or_object(*key) for key in keys])


def _kind(found: TrainingJob | WorkloadRecord) -> str:
    from muster.api.spec import WorkloadRecord

    return found.spec.object_ref.kind if isinstance(found, WorkloadRecord) else found.kind


def _outcome_of_cancel(before: TrainingJob | WorkloadRecord) -> str:
    """The result of a cancel that is printed, from the job before it; the processes stop later."""
    from muster.api.spec import WorkloadRecord
    from muster.workload.conditions import has_terminated

    if isinstance(before, WorkloadRecord) or not before.spec.cancel:
        return "is being cancelled"
    return "already cancelled" if has_terminated(before.status) else "is already being cancelled"


def _check_actionable(client: ClusterClient, keys: list[tuple[str, str]], past_tense: str) -> None:
    """Raises `Refused` naming every job that cannot be acted on. Of jobs that are stopped, some may have ended."""
    from muster.api.spec import WorkloadRecord
    from muster.api.validation import check_unfinished, resumed_in_vain
    from muster.errors import Conflict, NotFound, Refused
    from muster.workload.conditions import has_terminated

    errors: list[Refused] = []
    deleting: set[str] = set()  # in a cluster, the operator checks this
    if past_tense == "resumed" and selected_context() is None:
        deleting = {row["name"] for row in client.queues() if row.get("reason") == "Deleting"}
    for key in keys:
        try:
            job = client.job_or_object(*key)
            if isinstance(job, WorkloadRecord):
                if has_terminated(job.status):
                    raise Conflict(f"{_kind(job).lower()} {key[1]}/{key[0]} has ended", reason="JobFinished")
                continue
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
@click.option("--failed", is_flag=True, help="Run the indices again that have failed.")
@namespace_option
@json_option
def retry(job: str, failed: bool, namespace: str | None, as_json: bool) -> None:
    """Run indices of an array again, from the start: those that have failed."""
    from muster.api.spec import index_set

    if not failed:
        usage_error("--failed: must be given: it says which indices run again", "--failed")
    client, (name, space) = connect(), split_job_name(job, namespace)
    before = client.job(name, space)
    after = client.retry(name, space)
    if as_json:
        print_json([after])
        return
    count = len(index_set(before.status.array.failed)) if before.status.array is not None else 0
    console().print(f"trainingjob {space}/{name}: {count} of its indices queued again")


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
