"""Verbs about jobs: submit, jobs, describe, cancel, suspend, resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.client import Client, connect, listed_namespace
from muster.cli.completing import AllNamespaces, JobName, JobNames, Json, Namespace, Phases, QueueName, split_name
from muster.cli.outcome import Ended, ExitCode, usage_error
from muster.cli.printing import aside, console, print_json, show

if TYPE_CHECKING:
    from muster.cli.reading import Read
    from muster.listing import Listing
    from muster.spec import TrainingJob


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(submit)
    app.command("jobs")(list_jobs)
    app.command()(describe)
    app.command()(cancel)
    app.command()(suspend)
    app.command()(resume)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number; write one such as 10 or -5") from None


def submit(
    files: Annotated[list[str], typer.Argument(metavar="FILE.yaml", help="Files with TrainingJobs; - is stdin.")],
    queue: QueueName = None,
    priority: Annotated[
        int | None, typer.Option(help="Priority within the queue; higher first.", parser=_whole, metavar="N")
    ] = None,
    max_runtime: Annotated[
        str | None, typer.Option(metavar="2h", help="Longest stay; lets the job start ahead where it delays nobody.")
    ] = None,
    trace_steps: Annotated[str | None, typer.Option(metavar="20:25", help="Trace steps 20 to 24.")] = None,
    namespace: Namespace = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Pass on a variable of your environment, or NAME=VALUE. Repeatable."),
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="On this host: allow more processes than CPU cores or GPUs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, submit nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; the exit code tells how it was.")] = False,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Submit one job and watch it.")] = False,
    as_json: Json = False,
) -> None:
    """Submit the jobs of YAML files: all of them, or none."""
    from muster.cli.clusters import chosen
    from muster.cli.reading import Overrides, environment_overrides, placing, read_jobs
    from muster.cli.watch import watch_job
    from muster.variables import not_passed

    names, values = environment_overrides(env or [], on_host=chosen() is None)
    overrides = Overrides(queue, priority, max_runtime, trace_steps, namespace, oversubscribe, names, values)
    read = [job for file in files for job in read_jobs(file, overrides)]
    _check_named_once(read)
    if follow and len(read) != 1:
        usage_error(f"--watch: shows one job, and the files hold {len(read)}; use --wait", "--watch")
    client = connect()
    with placing(read):
        accepted = client.submit_all([one.job for one in read], dry_run)
    if not as_json and (left_out := client.newly_left_out(accepted)):
        aside(f"note: {not_passed(left_out, '--env ')}")
    if as_json and not wait:
        print_json(accepted)
    for job in () if as_json else accepted:
        _tell_submitted(job, dry_run, quiet=follow)
    if dry_run:
        return
    if follow:
        watch_job(client, *_key(accepted[0]))
    elif wait:
        ended = [_wait(client, *_key(job), quiet=as_json) for job in accepted]
        if as_json:
            print_json(ended)
        for job in () if as_json else ended:
            _tell_ended(job)
        if any(job.status.phase != "Succeeded" for job in ended):
            raise Ended(ExitCode.JOB_FAILED)


def list_jobs(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    queue: QueueName = None,
    phase: Phases = None,
    as_json: Json = False,
) -> None:
    """Show what runs, what waits and why, and what ended."""
    from muster.cli.views.job_table import in_order, job_table

    phases = None if phase is None else _phases(phase)
    of = None if all_namespaces else namespace or listed_namespace()
    client = connect()
    listing = client.listing(of)
    jobs = [
        job
        for job in listing.jobs
        if (queue is None or job.spec.queue == queue) and (phases is None or job.status.phase in phases)
    ]
    odd = [one for one in listing.unreadable if queue in (None, one.queue) and (phases is None or one.phase in phases)]
    if queue is not None and not _has_jobs(listing, queue):
        _check_queue(client, queue)
    if as_json:
        print_json([*in_order(jobs), *({**one.document, "unreadable": one.complaint} for one in odd)])
    elif jobs:
        show(job_table(jobs, time.time(), console().width))
    elif not odd:
        shown = {"namespace": of, "queue": queue, "phase": phases and ",".join(sorted(phases))}
        print(_no_match(client, listing, {name: value for name, value in shown.items() if value}))
    for one in () if as_json else odd:
        aside(f"warning: job {one.name} cannot be read: {one.complaint}")


def _has_jobs(listing: Listing, queue: str) -> bool:
    return any(job.spec.queue == queue for job in listing.jobs) or any(odd.queue == queue for odd in listing.unreadable)


def _no_match(client: Client, listing: Listing, filters: dict[str, str]) -> str:
    """What is printed in place of an empty table; `filters` are the values of the options by name."""
    from muster.errors import Refused

    where = ""
    if "namespace" in filters:
        try:
            listing = client.listing(None)
        except Refused:  # whoever may not list all namespaces is answered for this one
            where = f" in namespace {filters.pop('namespace')}"
    total = len(listing.jobs) + len(listing.unreadable)
    if not total:
        return f"No jobs{where}. Submit one: muster submit FILE.yaml"
    matched = ", ".join(f"{name} {value}" for name, value in filters.items())
    everywhere = "" if where else " in all namespaces"
    count = "1 job" if total == 1 else f"{total} jobs"
    return f"No jobs match {matched}{where}; there {'is' if total == 1 else 'are'} {count}{where or everywhere}."


def _check_queue(client: Client, name: str) -> None:
    """Raises `NotFound` where there is no such queue, as far as queues may be read."""
    from muster.errors import NotFound, Refused
    from muster.nearest import meant

    try:
        known = [row["name"] for row in client.queues()]
    except Refused:
        return
    if name not in known:
        hint = meant(name, known, f"there is {', '.join(known[:8])}" if known else "there is no queue yet")
        raise NotFound(f"there is no queue {name!r}; {hint}", field="--queue")


def _phases(text: str) -> frozenset[str]:
    """`Running,Pending`, in any case. Raises `InvalidSpec` Usage that names what is no phase and the nearest one."""
    from muster.cli.views.job_words import STYLES
    from muster.nearest import meant

    names = [name.strip() for name in text.split(",") if name.strip()]
    otherwise = f"write some of {', '.join(STYLES)}"
    if not names:
        usage_error(f"--phase: {text!r} names no phase; {otherwise}", "--phase")
    for name in names:
        if name.capitalize() not in STYLES:
            told = meant(name.capitalize(), STYLES, otherwise)
            usage_error(f"--phase: {name!r} is not known; {told}", "--phase")
    return frozenset(name.capitalize() for name in names)


def describe(job: JobName, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show one job: why it waits, where it runs, what happened."""
    from muster.cli.views.job_page import JobStory, job_page

    client, (name, space) = connect(), split_name(job, namespace)
    found = client.job(name, space)
    if as_json:
        print_json([found])
        return
    story = JobStory(
        job=found,
        events=client.events(name, space),
        beats=client.beats(name, space),
        run_dir=client.run_dir(name, space),
        now=time.time(),
    )
    show(job_page(story))


def cancel(jobs: JobNames, namespace: Namespace = None, as_json: Json = False) -> None:
    """Stop jobs for good: SIGTERM, a checkpoint, the end. Their records and logs stay."""
    _each(jobs, namespace, as_json, "cancelled", lambda client: client.cancel)


def suspend(jobs: JobNames, namespace: Namespace = None, as_json: Json = False) -> None:
    """Stop jobs after a checkpoint, and free their room. They wait until they are resumed."""
    _each(jobs, namespace, as_json, "suspended", lambda client: client.suspend)


def resume(jobs: JobNames, namespace: Namespace = None, as_json: Json = False) -> None:
    """Queue suspended jobs again; they go on from their last checkpoint."""
    _each(jobs, namespace, as_json, "resumed", lambda client: client.resume)


def _each(
    jobs: list[str],
    namespace: str | None,
    as_json: bool,
    done: str,
    act: Callable[[Client], Callable[[str, str], object]],
) -> None:
    """Act on every job, or on none: when one of several does not exist or is finished, nothing has happened."""
    client, keys = connect(), list(dict.fromkeys(split_name(job, namespace) for job in jobs))
    if len(keys) > 1:
        _check_all(client, keys, done)
    for key in keys:
        outcome = _outcome_of_cancel(client.job(*key)) if done == "cancelled" else done
        act(client)(*key)
        if not as_json:
            console().print(f"trainingjob {key[1]}/{key[0]} {outcome}")
    if as_json:
        print_json([client.job(*key) for key in keys])


def _outcome_of_cancel(before: TrainingJob) -> str:
    """What a cancel says of a job as it was before: its processes stop later."""
    from muster.lifecycle import has_ended

    if not before.spec.cancel:
        return "is being cancelled"
    return "already cancelled" if has_ended(before.status) else "is already being cancelled"


def _check_all(client: Client, keys: list[tuple[str, str]], done: str) -> None:
    """Raises `Refused` that tells of every job that cannot be acted on."""
    from muster.admission import ending, resumed_in_vain
    from muster.cli.clusters import chosen
    from muster.errors import Conflict, NotFound, Refused
    from muster.lifecycle import is_finished

    faults: list[Refused] = []
    leaving: set[str] = set()  # in a cluster the operator is the one to judge
    if done == "resumed" and chosen() is None:
        leaving = {row["name"] for row in client.queues() if row.get("reason") == "Deleting"}
    for key in keys:
        try:
            job = client.job(*key)
        except NotFound as error:
            faults.append(error)
        else:
            if is_finished(job.status) and not (done == "cancelled" and job.spec.cancel):  # to cancel again is no error
                faults.append(Conflict(f"job {key[0]!r} has already ended in phase {ending(job)}"))
            elif job.spec.suspend and job.spec.queue in leaving:
                faults.append(resumed_in_vain(job))
    if faults:
        raise type(faults[0])(f"{'; '.join(map(str, faults))}; nothing was {done}", reason=faults[0].reason)


def _wait(client: Client, name: str, namespace: str, quiet: bool) -> TrainingJob:
    """The job once it is over; until it starts, what `watch` says of its waiting is printed unless `quiet`."""
    from muster.cli.views.job_words import is_over, vanished
    from muster.cli.views.watching import Sight, news
    from muster.errors import NotFound

    last: TrainingJob | None = None
    before: Sight | None = None
    try:
        for job in client.watch(name, namespace):
            if is_over(job):
                return job
            sight = Sight(job, None, time.time())
            if not quiet and job.status.phase == "Pending":
                for line in news(before, sight):
                    console().print(line, soft_wrap=True)
            last, before = job, sight
    except KeyboardInterrupt:
        print(f"the job goes on; stop it with: muster cancel {namespace}/{name}", file=sys.stderr)
        raise
    except NotFound as error:
        raise NotFound(vanished(name, namespace, last)) from error
    raise NotFound(vanished(name, namespace, last))


def _check_named_once(jobs: list[Read]) -> None:
    """Raises `InvalidSpec` for a name that is there twice: the second would be refused once the first is submitted."""
    from muster.errors import InvalidSpec

    seen: dict[str, Read] = {}
    for one in jobs:
        first = seen.setdefault(one.name, one)
        if first is not one:
            field = "metadata.name"
            places = f"{first.written.place(field)} and {one.written.place(field)}"
            told = f"{field}: two of the jobs are {one.name} ({places}); give each a name of its own"
            raise InvalidSpec(told, field=field)


def _tell_submitted(job: TrainingJob, dry_run: bool, quiet: bool) -> None:
    told = "would be submitted" if dry_run else "submitted"
    console().print(f"trainingjob {_shown(job)} {told} to queue {job.spec.queue}")
    if not dry_run and not quiet:
        console().print(f"follow it with: muster watch {_named(job)}", style="dim")


def _tell_ended(job: TrainingJob) -> None:
    """One line of a job that succeeded; of another one also why, its exit code, its last line and where to look."""
    from muster.cli.views import job_words

    out, (code, message) = console(), job_words.reason(job)
    out.print(f"{_shown(job)} {job.status.phase}", markup=False)
    if job.status.phase == "Succeeded":
        return
    failure, last = job.status.last_failure, job_words.last_words(job)
    facts = [
        f"{code}: {message}" if code or message else "",
        f"exit code {failure.exit_code}" if failure is not None and failure.exit_code is not None else "",
        f"last line of the log: {last}" if last else "",
        f"see: muster describe {_named(job)}",
    ]
    for fact in facts:
        if fact:
            out.print(f"  {fact}", soft_wrap=True, markup=False)


def _named(job: TrainingJob) -> str:
    """As a verb takes it: the namespace only where it is not the default one."""
    name, namespace = _key(job)
    return name if namespace == "default" else f"{namespace}/{name}"


def _shown(job: TrainingJob) -> str:
    return "/".join(reversed(_key(job)))


def _key(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.name, job.metadata.namespace or "default"
