"""The commands submit, jobs, describe, cancel, suspend and resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.completion import (
    AllNamespacesOption,
    JobArgument,
    JobsArgument,
    JsonOption,
    NamespaceOption,
    PhaseOption,
    QueueOption,
    split_job_name,
)
from muster.cli.connect import ClusterClient, connect, default_list_namespace
from muster.cli.exit_codes import CommandExit, ExitCode, usage_error
from muster.cli.output import console, print_json, print_note, print_renderable

if TYPE_CHECKING:
    from muster.cli.manifests import LoadedJob
    from muster.job_list import JobList
    from muster.spec import TrainingJob


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(submit)
    app.command("jobs")(list_jobs)
    app.command()(describe)
    app.command()(cancel)
    app.command()(suspend)
    app.command()(resume)


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be an integer such as 10 or -5; got {text!r}") from None


def submit(
    files: Annotated[list[str], typer.Argument(metavar="FILE.yaml", help="Files with TrainingJobs; - is stdin.")],
    queue: QueueOption = None,
    priority: Annotated[
        int | None, typer.Option(help="Priority within the queue; higher first.", parser=_parse_int, metavar="N")
    ] = None,
    max_runtime: Annotated[str | None, typer.Option(metavar="2h", help="Maximum run time; enables backfill.")] = None,
    trace_steps: Annotated[str | None, typer.Option(metavar="20:25", help="Trace steps 20 to 24.")] = None,
    namespace: NamespaceOption = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Pass a variable of your environment, or NAME=VALUE. Repeatable."),
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="On this host: allow more processes than CPU cores or GPUs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate the jobs without submitting them.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the jobs end; exit code 1 if one failed.")] = False,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Submit one job and watch it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit the jobs of YAML files: all of them, or none."""
    from muster.cli.cluster_options import selected_context
    from muster.cli.manifests import SpecOverrides, load_jobs, locate_errors, parse_env_overrides
    from muster.cli.watch import watch_job
    from muster.env_vars import not_passed_message

    names, values = parse_env_overrides(env or [], on_host=selected_context() is None)
    overrides = SpecOverrides(queue, priority, max_runtime, trace_steps, namespace, oversubscribe, names, values)
    read = [job for file in files for job in load_jobs(file, overrides)]
    _check_unique_names(read)
    if follow and len(read) != 1:
        usage_error(f"--watch: must be used with one job; the files contain {len(read)}; use --wait", "--watch")
    client = connect()
    with locate_errors(read):
        accepted = client.submit_all([one.job for one in read], dry_run)
    if not as_json and (omitted := client.newly_left_out(accepted)):
        print_note(f"note: {not_passed_message(omitted, '--env ')}")
    if as_json and not wait:
        print_json(accepted)
    for job in () if as_json else accepted:
        _print_submitted(job, dry_run, quiet=follow)
    if dry_run:
        return
    if follow:
        watch_job(client, *_name_and_namespace(accepted[0]))
    elif wait:
        ended = [_wait_for_end(client, *_name_and_namespace(job), quiet=as_json) for job in accepted]
        if as_json:
            print_json(ended)
        for job in () if as_json else ended:
            _print_ended(job)
        if any(job.status.phase != "Succeeded" for job in ended):
            raise CommandExit(ExitCode.JOB_FAILED)


def list_jobs(
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    queue: QueueOption = None,
    phase: PhaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs: running, waiting with the reason, and finished."""
    from muster.cli.views.job_table import job_table, sorted_for_display

    phases = None if phase is None else _parse_phases(phase)
    of = None if all_namespaces else namespace or default_list_namespace()
    client = connect()
    listing = client.job_list(of)
    jobs = [
        job
        for job in listing.jobs
        if (queue is None or job.spec.queue == queue) and (phases is None or job.status.phase in phases)
    ]
    unreadable = [
        one for one in listing.unreadable if queue in (None, one.queue) and (phases is None or one.phase in phases)
    ]
    if queue is not None and not _has_jobs_in_queue(listing, queue):
        _check_queue_exists(client, queue)
    if as_json:
        print_json([*sorted_for_display(jobs), *({**one.document, "unreadable": one.error} for one in unreadable)])
    elif jobs:
        print_renderable(job_table(jobs, time.time(), console().width))
    elif not unreadable:
        shown = {"namespace": of, "queue": queue, "phase": phases and ",".join(sorted(phases))}
        print(_no_match_message(client, listing, {name: value for name, value in shown.items() if value}))
    for one in () if as_json else unreadable:
        print_note(f"warning: job {one.name} cannot be read: {one.error}")


def _has_jobs_in_queue(job_list: JobList, queue: str) -> bool:
    return any(job.spec.queue == queue for job in job_list.jobs) or any(
        item.queue == queue for item in job_list.unreadable
    )


def _no_match_message(client: ClusterClient, job_list: JobList, filters: dict[str, str]) -> str:
    """The message for an empty table; `filters` holds the values of the given options by name."""
    from muster.errors import Refused

    where = ""
    if "namespace" in filters:
        try:
            job_list = client.job_list(None)
        except Refused:  # listing all namespaces is forbidden: count this namespace only
            where = f" in namespace {filters.pop('namespace')}"
    total = len(job_list.jobs) + len(job_list.unreadable)
    if not total:
        return f"No jobs{where}. Submit one: muster submit FILE.yaml"
    matched = ", ".join(f"{name} {value}" for name, value in filters.items())
    everywhere = "" if where else " in all namespaces"
    count = "1 job" if total == 1 else f"{total} jobs"
    return f"No jobs match {matched}{where}; there {'is' if total == 1 else 'are'} {count}{where or everywhere}."


def _check_queue_exists(client: ClusterClient, name: str) -> None:
    """Raises `NotFound` if the queue does not exist; does nothing if reading queues is forbidden."""
    from muster.errors import NotFound, Refused
    from muster.text.suggest import did_you_mean

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
    from muster.text.suggest import did_you_mean

    names = [name.strip() for name in text.split(",") if name.strip()]
    valid = f"valid phases: {', '.join(PHASE_STYLES)}"
    if not names:
        usage_error(f"--phase: must name at least one phase; got {text!r}; {valid}", "--phase")
    for name in names:
        if name.capitalize() not in PHASE_STYLES:
            hint = did_you_mean(name.capitalize(), PHASE_STYLES, valid)
            usage_error(f"--phase: unknown phase {name!r}; {hint}", "--phase")
    return frozenset(name.capitalize() for name in names)


def describe(job: JobArgument, namespace: NamespaceOption = None, as_json: JsonOption = False) -> None:
    """Show one job: its status, why it waits, its nodes and its events."""
    from muster.cli.views.job_details import JobDetails, job_details_view

    client, (name, space) = connect(), split_job_name(job, namespace)
    found = client.job(name, space)
    if as_json:
        print_json([found])
        return
    details = JobDetails(
        job=found,
        events=client.events(name, space),
        heartbeats=client.heartbeats(name, space),
        run_dir=client.run_dir(name, space),
        now=time.time(),
    )
    print_renderable(job_details_view(details))


def cancel(jobs: JobsArgument, namespace: NamespaceOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs: SIGTERM, time for a checkpoint, then SIGKILL. Their records and logs are kept."""
    _apply_to_jobs(jobs, namespace, as_json, "cancelled", lambda client: client.cancel)


def suspend(jobs: JobsArgument, namespace: NamespaceOption = None, as_json: JsonOption = False) -> None:
    """Stop jobs after a checkpoint and release their resources until they are resumed."""
    _apply_to_jobs(jobs, namespace, as_json, "suspended", lambda client: client.suspend)


def resume(jobs: JobsArgument, namespace: NamespaceOption = None, as_json: JsonOption = False) -> None:
    """Queue suspended jobs again; they resume from their last checkpoint."""
    _apply_to_jobs(jobs, namespace, as_json, "resumed", lambda client: client.resume)


def _apply_to_jobs(
    jobs: list[str],
    namespace: str | None,
    as_json: bool,
    past_tense: str,
    get_action: Callable[[ClusterClient], Callable[[str, str], object]],
) -> None:
    """Act on all jobs or none: if one of several does not exist or is finished, no job is changed."""
    client, keys = connect(), list(dict.fromkeys(split_job_name(job, namespace) for job in jobs))
    if len(keys) > 1:
        _check_actionable(client, keys, past_tense)
    for key in keys:
        outcome = _outcome_of_cancel(client.job(*key)) if past_tense == "cancelled" else past_tense
        get_action(client)(*key)
        if not as_json:
            console().print(f"trainingjob {key[1]}/{key[0]} {outcome}")
    if as_json:
        print_json([client.job(*key) for key in keys])


def _outcome_of_cancel(before: TrainingJob) -> str:
    """The result of a cancel that is printed, from the job before it; the processes stop later."""
    from muster.lifecycle import has_terminated

    if not before.spec.cancel:
        return "is being cancelled"
    return "already cancelled" if has_terminated(before.status) else "is already being cancelled"


def _check_actionable(client: ClusterClient, keys: list[tuple[str, str]], past_tense: str) -> None:
    """Raises `Refused` naming every job that cannot be acted on."""
    from muster.cli.cluster_options import selected_context
    from muster.errors import Conflict, NotFound, Refused
    from muster.lifecycle import is_finished
    from muster.validation import final_phase, resumed_in_vain

    errors: list[Refused] = []
    deleting: set[str] = set()  # in a cluster, the operator checks this
    if past_tense == "resumed" and selected_context() is None:
        deleting = {row["name"] for row in client.queues() if row.get("reason") == "Deleting"}
    for key in keys:
        try:
            job = client.job(*key)
        except NotFound as error:
            errors.append(error)
        else:
            is_repeated_cancel = past_tense == "cancelled" and job.spec.cancel  # allowed
            if is_finished(job.status) and not is_repeated_cancel:
                errors.append(Conflict(f"job {key[0]!r} has already ended in phase {final_phase(job)}"))
            elif job.spec.suspend and job.spec.queue in deleting:
                errors.append(resumed_in_vain(job))
    if errors:
        raise type(errors[0])(f"{'; '.join(map(str, errors))}; nothing was {past_tense}", reason=errors[0].reason)


def _wait_for_end(client: ClusterClient, name: str, namespace: str, quiet: bool) -> TrainingJob:
    """Return the job once it has ended; while it is pending, print changes as `watch` does, unless `quiet`."""
    from muster.cli.views.job_text import deleted_message, is_over
    from muster.cli.views.watch_view import WatchFrame, change_lines
    from muster.errors import NotFound

    last: TrainingJob | None = None
    before: WatchFrame | None = None
    try:
        for job in client.watch(name, namespace):
            if is_over(job):
                return job
            frame = WatchFrame(job, None, time.time())
            if not quiet and job.status.phase == "Pending":
                for line in change_lines(before, frame):
                    console().print(line, soft_wrap=True)
            last, before = job, frame
    except KeyboardInterrupt:
        print(f"the job is still running; to stop it: muster cancel {namespace}/{name}", file=sys.stderr)
        raise
    except NotFound as error:
        raise NotFound(deleted_message(name, namespace, last)) from error
    raise NotFound(deleted_message(name, namespace, last))


def _check_unique_names(jobs: list[LoadedJob]) -> None:
    """Raises `InvalidSpec` for a duplicate name, before the first of the two is submitted."""
    from muster.errors import InvalidSpec

    seen: dict[str, LoadedJob] = {}
    for one in jobs:
        first = seen.setdefault(one.name, one)
        if first is not one:
            field = "metadata.name"
            places = f"{first.source.location(field)} and {one.source.location(field)}"
            message = f"{field}: must be unique; two jobs are named {one.name} ({places})"
            raise InvalidSpec(message, field=field)


def _print_submitted(job: TrainingJob, dry_run: bool, quiet: bool) -> None:
    result = "would be submitted" if dry_run else "submitted"
    console().print(f"trainingjob {_qualified_name(job)} {result} to queue {job.spec.queue}")
    if not dry_run and not quiet:
        console().print(f"to follow it: muster watch {_job_argument(job)}", style="dim")


def _print_ended(job: TrainingJob) -> None:
    """One line; for a job that did not succeed also the reason, exit code, last log line and the next command."""
    from muster.cli.views import job_text

    out, (code, message) = console(), job_text.phase_reason(job)
    out.print(f"{_qualified_name(job)} {job.status.phase}", markup=False)
    if job.status.phase == "Succeeded":
        return
    failure, last = job.status.last_failure, job_text.last_log_line(job)
    facts = [
        f"{code}: {message}" if code or message else "",
        f"exit code {failure.exit_code}" if failure is not None and failure.exit_code is not None else "",
        f"last line of the log: {last}" if last else "",
        f"see: muster describe {_job_argument(job)}",
    ]
    for fact in facts:
        if fact:
            out.print(f"  {fact}", soft_wrap=True, markup=False)


def _job_argument(job: TrainingJob) -> str:
    """The job as a command argument: with the namespace only if it is not `default`."""
    name, namespace = _name_and_namespace(job)
    return name if namespace == "default" else f"{namespace}/{name}"


def _qualified_name(job: TrainingJob) -> str:
    return "/".join(reversed(_name_and_namespace(job)))


def _name_and_namespace(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.name, job.metadata.namespace or "default"
