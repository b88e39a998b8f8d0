"""The command `submit`: submits the jobs of manifests, with options that override their fields."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from muster.cli.connect import connect, selected_context
from muster.cli.options import FILE, json_option, namespace_option, queue_option
from muster.cli.output import CommandExit, ExitCode, console, print_json, print_note, usage_error
from muster.client import ClusterClient

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob
    from muster.cli.manifests import LoadedJob


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"must be an integer such as 10 or -5; got {text!r}") from None


@click.command()
@click.argument(
    "files", type=FILE, nargs=-1, required=True, metavar="FILE.yaml...", help="Files with TrainingJobs; - is stdin."
)
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
    """Submit the jobs of YAML files: all of them, or none."""
    from muster.api.env_vars import not_passed_message
    from muster.cli.manifests import SpecOverrides, load_jobs, locate_errors, parse_env_overrides
    from muster.cli.watch import watch_job

    names, values = parse_env_overrides(env, on_host=selected_context() is None)
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


def _wait_for_end(client: ClusterClient, name: str, namespace: str, quiet: bool) -> TrainingJob:
    """Return the job once it has ended; while it is pending, print changes as `watch` does, unless `quiet`."""
    from muster.cli.views.job_text import deleted_message, is_over
    from muster.errors import NotFound

    last: TrainingJob | None = None
    try:
        from muster.cli.views.watch import WatchFrame, change_lines

        before: WatchFrame | None = None
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
