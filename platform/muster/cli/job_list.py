"""The command jobs: a table of jobs, once or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from muster.cli.job_selection import parse_phases
from muster.cli.options import (
    PlainOption,
    complete_phases,
    connect,
    default_list_namespace,
    json_option,
    namespace_option,
    queue_option,
    selected_context,
)
from muster.cli.output import console, print_json, print_note, print_notices, print_renderable, usage_error
from muster.client import ClusterClient
from muster.errors import MusterError
from muster.text import pluralize

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.api.spec import TrainingJob
    from muster.cli.views.job_rows import ListedJob
    from muster.client import JobList

_SHOWN_AFTER_END_S = 86_400.0  # an ended job is listed by default
_WATCH_S = 2.0
_MAX_READ = 200  # running jobs of which heartbeats are read


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs are listed, in which order, and which columns are shown. `since`: the earliest end, as given."""

    namespace: str | None
    queue: str | None
    phases: frozenset[str] | None
    show_all: bool
    ended: bool
    since: str | None
    limit: int | None
    columns: tuple[str, ...]
    sort: str | None
    as_json: bool

    def earliest_end(self, now: float) -> float | None:
        """The earliest end of a job that is shown; None: all are."""
        from muster.text import parse_time

        if self.since is not None:
            return parse_time(self.since, now, "--since")
        everything = self.show_all or self.as_json or self.ended or self.phases is not None
        return None if everything else now - _SHOWN_AFTER_END_S

    def selects(self, queue: str | None, phase: str | None) -> bool:
        """Whether a job of this queue and phase (None: not readable) is of interest, whenever it ended."""
        return self.queue in (None, queue) and (self.phases is None or phase in self.phases)

    def shows(self, job: ListedJob, earliest: float | None) -> bool:
        """Whether a selected job is listed."""
        if not job.has_ended:
            return not self.ended
        ended_at = job.status.finished_at
        return earliest is None or ended_at is None or ended_at >= earliest

    def ordered(self, jobs: Sequence[ListedJob], now: float) -> list[ListedJob]:
        """The jobs that are shown in their order."""
        from muster.cli.views.job_rows import sorted_by, sorted_for_display

        if self.sort is None:
            found = sorted_for_display(jobs)
        else:
            column = self.sort.lstrip("-")
            found = sorted_by(jobs, column, now, descending=self.sort.startswith("-"))
        return found[: self.limit]


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a query found. `matching`: jobs that it selects, shown or not."""

    listing: JobList
    jobs: list[ListedJob]
    matching: int


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
@click.option("--sort", metavar="COLUMN", help="In the order of a column; -COLUMN: the largest first.")
@click.option("--columns", "-o", metavar="COLUMN,...", help="Columns to show, such as job,gpus,step,eta.")
@click.option("--wide", "-w", is_flag=True, help="Whole reasons instead of one line per job.")
@click.option("--watch", is_flag=True, help="Redraw until Ctrl-C.")
@json_option
def list_jobs(**given: Any) -> None:
    """List jobs: running, waiting with the reason, and what ended in the last day."""
    if given["show_all"] and given["since"] is not None:
        usage_error("--since: must not be used with --all", "--since")
    query = _parse_query(given)
    query.earliest_end(time.time())  # refused before anything is read
    client = connect()
    if given["watch"]:
        _watch(client, query, given["wide"])
        return
    now, found = time.time(), _find(client, query)
    print_notices(client)
    if query.queue is not None and not _has_jobs_in_queue(found.listing, query.queue):
        _check_queue_exists(client, query.queue)
    unreadable = [one for one in found.listing.unreadable if query.selects(one.queue, one.phase)]
    if query.as_json:
        documents = [job.document for job in found.jobs]
        print_json([*documents, *({**one.document, "unreadable": one.error} for one in unreadable)])
        return
    if found.jobs:
        print_renderable(_table(found.jobs, query, now, given["wide"] or not sys.stdout.isatty()))
    elif not unreadable:
        print(_empty_message(client, query, found))
    if len(found.jobs) < found.matching and not query.ended and query.since is None:
        more = pluralize(found.matching - len(found.jobs), "more job")
        print_note(f"{more} not shown; all: muster jobs --all")
    for one in unreadable:
        print_note(f"warning: job {one.name} cannot be read: {one.error}")


def _parse_query(given: dict[str, Any]) -> JobQuery:
    """Raises `InvalidSpec` Usage."""
    sort = given["sort"]
    if sort is not None:
        descending = "-" if sort.startswith("-") else ""
        sort = descending + _parse_columns(sort.removeprefix("-"), "--sort")[0]
    return JobQuery(
        None if given["all_namespaces"] else given["namespace"] or default_list_namespace(),
        given["queue"],
        None if given["phase"] is None else parse_phases(given["phase"]),
        given["show_all"],
        given["ended"],
        given["since"],
        given["limit"],
        () if given["columns"] is None else _parse_columns(given["columns"], "--columns"),
        sort,
        given["as_json"],
    )


def _parse_columns(text: str, option: str) -> tuple[str, ...]:
    """The titles of `job,gpus`. Raises `InvalidSpec` Usage."""
    from muster.cli.views.job_rows import COLUMNS
    from muster.text import did_you_mean

    valid = f"columns: {', '.join(COLUMNS).lower()}"
    titles = tuple(dict.fromkeys(name.strip().upper() for name in text.split(",") if name.strip()))
    if not titles:
        usage_error(f"{option}: must name a column; got {text!r}; {valid}", option)
    for title in titles:
        if title not in COLUMNS:
            hint = did_you_mean(title, COLUMNS, valid)
            usage_error(f"{option}: unknown column {title.lower()!r}; {hint}", option)
    return titles


def _find(client: ClusterClient, query: JobQuery) -> _Listed:
    from muster.cli.views.job_rows import listed_job, listed_object

    listing, now = client.job_list(query.namespace), time.time()
    read = 0
    selected = []
    for job in listing.jobs:
        if query.selects(job.spec.queue, job.status.phase):
            heartbeat = None
            if job.status.phase == "Running" and read < _MAX_READ and not query.as_json:
                read += 1
                heartbeat = _heartbeat(client, job)
            selected.append(listed_job(job, heartbeat))
    objects = map(listed_object, listing.objects)
    selected += [one for one in objects if query.selects(one.summary.queue, one.status.phase)]
    earliest = query.earliest_end(now)
    shown = [job for job in selected if query.shows(job, earliest)]
    return _Listed(listing, query.ordered(shown, now), len(selected))


def _heartbeat(client: ClusterClient, job: TrainingJob) -> dict[str, Any] | None:
    """The progress of a job of this host, which its status does not have."""
    from muster.heartbeats.progress import current_heartbeat

    if selected_context() is not None:
        return None
    with suppress(MusterError, OSError):  # the job was deleted meanwhile
        heartbeats = client.heartbeats(job.metadata.name, job.metadata.namespace or "default")
        return current_heartbeat(heartbeats, job.status.attempt)
    return None


def _table(jobs: Sequence[ListedJob], query: JobQuery, now: float, wide: bool) -> RenderableType:
    from muster.cli.views.job_table import job_table

    return job_table(jobs, now, console().width, wide=wide, columns=query.columns)


def _watch(client: ClusterClient, query: JobQuery, wide: bool) -> None:
    from rich.live import Live
    from rich.text import Text

    out = console()
    if query.as_json or not out.is_terminal:
        usage_error("--watch: must be used on a terminal, without --json", "--watch")
    with Live(console=out, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            found, now = _find(client, query), time.time()
            table = _table(found.jobs, query, now, wide) if found.jobs else Text(_empty_message(client, query, found))
            live.update(table, refresh=True)
            time.sleep(_WATCH_S)


def _empty_message(client: ClusterClient, query: JobQuery, found: _Listed) -> str:
    if found.matching:
        only_ended = query.ended and query.since is None
        return "No job has ended." if only_ended else "No job is running, waiting, or ended in this time."
    phases = query.phases and ",".join(sorted(query.phases))
    filters = {"namespace": query.namespace, "queue": query.queue, "phase": phases}
    return _no_match_message(client, found.listing, {name: value for name, value in filters.items() if value})


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
