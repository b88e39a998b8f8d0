"""The command `logs`: the output of a job's pods, merged and filtered.

After an elastic job shrank, some replicas have logs of earlier attempts only. Lines of different attempts must not be
merged: unless replicas are named, only the newest attempt is shown, and a note says which replicas were left out.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from muster.cli.options import PlainOption, connect, job_argument, json_option, namespace_option, split_job_name
from muster.cli.output import console, print_note, usage_error
from muster.client import DEFAULT_LOG_OPTIONS, ClusterClient, LogOptions
from muster.text import pluralize, sanitize_keep_colors

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob, WorkloadRecord

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_MAX_NAMED = 4
_RANK_MARK = re.compile(r"\[r(\d+)\] ")
_COUNT = click.IntRange(min=0)


@dataclass(frozen=True, slots=True)
class PodAttempt:
    """One pod whose log is shown; attempt None is the current one."""

    role: str
    index: int
    attempt: int | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def name_with_attempt(self) -> str:
        """The name of its log in the run folder."""
        return self.name if self.attempt is None else f"{self.name}.attempt-{self.attempt}"


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Options of a log read other than the attempt, and a pattern that lines must match."""

    options: LogOptions
    pattern: re.Pattern[str] | None
    rank: int | None = None
    """Only lines of this rank: Muster's launcher marks those of all ranks but 0."""

    def shows(self, line: str) -> bool:
        if self.rank is not None:
            marked = _RANK_MARK.match(line)
            if (int(marked[1]) if marked else 0) != self.rank:
                return False
        return self.pattern is None or self.pattern.search(line) is not None

    @property
    def is_unfiltered(self) -> bool:
        """Whether all lines are shown; following does not count as a filter."""
        return self.pattern is None and self.rank is None and replace(self.options, follow=False) == DEFAULT_LOG_OPTIONS


@click.command()
@job_argument
@click.option("--role", metavar="ROLE", help="Pods of this role only.")
@click.option("--index", "-i", "indexes", type=int, multiple=True, metavar="N", help="Pods of this index only.")
@click.option(
    "--attempt",
    cls=PlainOption,
    type=_COUNT,
    metavar="N",
    help="This attempt instead of the newest; the first is 0.",
)
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends.")
@click.option("--since", metavar="10m", help="From this time, or duration ago.")
@click.option("--until", metavar="5m", help="Up to this time, or duration ago.")
@click.option("--tail", cls=PlainOption, type=_COUNT, metavar="N", help="The last lines of each pod only.")
@click.option("--grep", "--regex", "-e", "regex", metavar="REGEX", help="Lines that match only.")
@click.option("--rank", "-r", cls=PlainOption, type=_COUNT, metavar="R", help="Lines of this rank only.")
@namespace_option
@json_option
def logs(
    job: str,
    role: str | None,
    indexes: tuple[int, ...],
    attempt: int | None,
    follow: bool,
    since: str | None,
    until: str | None,
    tail: int | None,
    regex: str | None,
    rank: int | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Print the logs of a job's pods, with a prefix per pod if there are several."""
    from muster.api.spec import TERMINAL_PHASES, WorkloadRecord
    from muster.text import parse_time

    now, (name, space) = time.time(), split_job_name(job, namespace)
    options = LogOptions(
        since=None if since is None else parse_time(since, now, "--since"),
        until=None if until is None else parse_time(until, now, "--until"),
        tail_lines=tail,
        follow=follow,
    )
    search = LogFilter(options, None if regex is None else _compile_regex(regex))
    client = connect()
    found = client.job_or_object(name, space)
    if isinstance(found, WorkloadRecord):
        if rank is not None:
            usage_error("--rank: is for TrainingJobs, whose launcher says which rank wrote a line", "--rank")
        _print_object_logs(client, found, (role, indexes, attempt), search, as_json=as_json)
        return
    refuse_array(found)
    if rank is not None:
        if role is not None or indexes:
            usage_error("--rank: must not be used with --role or --index, which it selects", "--rank")
        role, index = place_of_rank(found, rank)
        indexes, search = (index,), replace(search, rank=rank)
    pods = (
        select_pods(found, role, indexes) if attempt is None else select_pods_of_attempt(found, role, indexes, attempt)
    )
    is_live = follow and found.status.phase not in ("Terminating", *TERMINAL_PHASES)  # shows the current attempt
    if attempt is None and not is_live:
        pods = with_newest_log_attempt(pods, client.log_attempts(name, space))
        if not indexes:
            pods, omitted = split_by_newest_attempt(pods)
            if omitted:
                print_note(omitted_logs_message(omitted, job))
    if follow and found.status.phase in ("Pending", "Suspended", "Admitted"):
        _print_no_output_reason(found)  # before waiting: the first line may take hours
    lines = merge_lines(client, (name, space), pods, search)
    any_line = _print_json_lines(lines, found.status.attempt, follow) if as_json else _print_lines(lines, pods, follow)
    if not any_line and not follow and attempt is None and search.is_unfiltered:
        _print_no_output_reason(found)


def _print_object_logs(
    client: ClusterClient,
    record: WorkloadRecord,
    chosen: tuple[str | None, tuple[int, ...], int | None],
    search: LogFilter,
    *,
    as_json: bool,
) -> None:
    """The logs of an object of another kind: of the pods of its present admission, whose numbers are in the order of
    their names. `chosen`: the options role, index and attempt."""
    from muster.cli.views.object_details import object_line
    from muster.workload.placement import pod_slots

    role, indexes, attempt = chosen
    if attempt is not None and attempt != record.status.attempt:
        usage_error(f"--attempt: pods of earlier admissions are deleted; got {attempt}", "--attempt")
    pods = [PodAttempt(slot.role, slot.index) for slot in pod_slots(record.status.placement)]
    roles = list(dict.fromkeys(pod.role for pod in pods))
    if role is not None and pods and role not in roles:
        usage_error(f"--role: must be one of {', '.join(roles)}; got {role!r}", "--role")
    pods = [pod for pod in pods if role in (None, pod.role) and (not indexes or pod.index in indexes)]
    name = record.spec.object_ref.name, record.metadata.namespace or "default"
    lines, follow = merge_lines(client, name, pods, search) if pods else iter(()), search.options.follow
    printed = pods and (
        _print_json_lines(lines, record.status.attempt, follow) if as_json else _print_lines(lines, pods, follow)
    )
    if not printed:
        print_note(object_line(record, time.time()))


def follow_job(client: ClusterClient, name: str, namespace: str) -> None:
    """Print the output of a job until it ends; first, on stderr, why there is none yet."""
    found = client.job(name, namespace)
    if found.status.phase in ("Pending", "Suspended", "Admitted"):
        _print_no_output_reason(found)
    pods = select_pods(found, None, ())
    lines = merge_lines(client, (name, namespace), pods, LogFilter(LogOptions(follow=True), None))
    _print_lines(lines, pods, follow=True)


def _print_no_output_reason(job: TrainingJob) -> None:
    from muster.cli.views.job_text import no_output_reason

    print_note(no_output_reason(job))


def _compile_regex(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        message = f"--grep: must be a regular expression such as 'step [0-9]+'; got {regex!r}: {error}"
        usage_error(message, "--grep")


def _print_lines(lines: Iterator[tuple[PodAttempt, str]], pods: list[PodAttempt], follow: bool) -> bool:
    """Print lines and return whether there was one. With logs of several attempts, the prefix includes the attempt. A
    terminal gets text and colours without other control sequences, a pipe the bytes that were written."""
    any_line, out = False, console()
    shown = sanitize_keep_colors if out.file.isatty() else str
    colours = {pod: _COLORS[index % len(_COLORS)] for index, pod in enumerate(pods)}
    several = len({pod.attempt for pod in pods}) > 1
    names = {pod: pod.name_with_attempt if several else pod.name for pod in pods}
    width = max(map(len, names.values()))
    for pod, line in lines:
        any_line = True
        if len(pods) > 1:
            out.print(f"{names[pod]:{width}} │ ", style=colours[pod], end="", markup=False, soft_wrap=True)
        out.file.write(shown(line) + "\n")
        if follow:
            out.file.flush()
    return any_line


def _print_json_lines(lines: Iterator[tuple[PodAttempt, str]], current_attempt: int, follow: bool) -> bool:
    """Print a JSON list, or when following one object per line; return whether there was a line."""
    import json

    from muster.cli.output import print_json

    rows = (
        {
            "role": pod.role,
            "index": pod.index,
            "attempt": current_attempt if pod.attempt is None else pod.attempt,
            "line": line,
        }
        for pod, line in lines
    )
    if not follow:
        found = list(rows)
        print_json(found)
        return bool(found)
    any_line = False
    for row in rows:
        any_line = True
        print(json.dumps(row), flush=True)
    return any_line


def merge_lines(
    client: ClusterClient, job: tuple[str, str], pods: list[PodAttempt], log_filter: LogFilter
) -> Iterator[tuple[PodAttempt, str]]:
    """The lines of all pods: one pod after the other, or in order of arrival when following."""
    options = log_filter.options
    if options.follow and len(pods) > 1:
        lines = _interleave_lines(client, job, pods, options)
    else:
        lines = ((pod, line) for pod in pods for line in _pod_lines(client, job, pod, options))
    for pod, line in lines:
        if log_filter.shows(line):
            yield pod, line


def _interleave_lines(
    client: ClusterClient, job: tuple[str, str], pods: list[PodAttempt], options: LogOptions
) -> Iterator[tuple[PodAttempt, str]]:
    arriving: queue.Queue[tuple[PodAttempt, str | Exception | None]] = queue.Queue(maxsize=10_000)

    def read(pod: PodAttempt) -> None:
        try:
            for line in _pod_lines(client, job, pod, options):
                arriving.put((pod, line))
            arriving.put((pod, None))
        except Exception as error:  # raised again in the main thread
            arriving.put((pod, error))

    for pod in pods:
        threading.Thread(target=read, args=(pod,), daemon=True).start()
    open_logs = len(pods)
    while open_logs:
        pod, line = arriving.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            open_logs -= 1
        else:
            yield pod, line


def _pod_lines(client: ClusterClient, job: tuple[str, str], pod: PodAttempt, options: LogOptions) -> Iterator[str]:
    name, namespace = job
    return client.log_lines(name, namespace, pod.role, pod.index, replace(options, attempt=pod.attempt))


def refuse_array(job: TrainingJob) -> None:
    """Raises `InvalidSpec` Usage for an array, whose indices have the pods."""
    from muster.api.spec.arrays import index_set

    if job.spec.array is not None and "/" not in job.metadata.uid:
        name, first = job.metadata.name, min(index_set(job.spec.array.indices))
        usage_error(f"JOB: {name} is an array; name one of its indices, such as {name}-{first}", "job")


def place_of_rank(job: TrainingJob, rank: int) -> tuple[str, int]:
    """(role, index) of the pod of a rank of the first role that starts processes in its pods."""
    from muster.local.command_lines import processes_per_pod

    for role in job.spec.roles:
        container = role.template.spec.containers[0]
        processes = processes_per_pod([*container.command, *container.args])
        if processes is not None:
            if rank >= processes * role.replicas:
                usage_error(f"--rank: must be 0 to {processes * role.replicas - 1} for this job; got {rank}", "--rank")
            return role.name, rank // processes
    usage_error("--rank: must be used with a job whose ranks Muster's launcher starts; use --index for a pod", "--rank")


def select_pods(job: TrainingJob, role: str | None, indexes: Sequence[int]) -> list[PodAttempt]:
    """The pods of a role and of the given indexes; by default those of the job at its current size."""
    roles = job.spec.roles
    if role is not None and role not in {item.name for item in roles}:
        usage_error(
            f"--role: must be one of the job's roles ({', '.join(item.name for item in roles)}); got {role!r}", "--role"
        )
    pods = [
        PodAttempt(item.name, index) for item in roles if role in (None, item.name) for index in range(item.replicas)
    ]
    chosen = [pod for pod in pods if pod.index in indexes] if indexes else _placed_pods(job, pods)
    if not chosen:
        given = ", ".join(map(str, indexes))
        usage_error(f"--index: must be 0 to {max(pod.index for pod in pods)} for this job; got {given}", "--index")
    return chosen


def _placed_pods(job: TrainingJob, pods: list[PodAttempt]) -> list[PodAttempt]:
    """The pods in the current placement: other replicas of an elastic job have logs of earlier attempts only."""
    from muster.workload.placement import index_range

    placed = {
        PodAttempt(part.role, index)
        for part in job.status.placement
        for share in part.nodes
        for index in index_range(share.indexes)
    }
    return [pod for pod in pods if pod in placed] or pods


def select_pods_of_attempt(
    job: TrainingJob, role: str | None, indexes: Sequence[int], attempt: int
) -> list[PodAttempt]:
    """Like `select_pods`, for a given attempt. The attempt may have had roles and replicas that the job no longer has:
    named ones are not checked here, the cluster raises `NotFound` if they have no log."""
    names = [role] if role is not None else [item.name for item in job.spec.roles]
    if indexes and min(indexes) >= 0 and len(names) == 1:
        return [PodAttempt(names[0], index, attempt) for index in sorted(set(indexes))]
    return [replace(pod, attempt=attempt) for pod in select_pods(job, role, indexes)]


def with_newest_log_attempt(pods: Iterable[PodAttempt], newest: Mapping[tuple[str, int], int]) -> list[PodAttempt]:
    """The pods, each with the newest attempt of which it has a log; None if unknown."""
    return [replace(pod, attempt=newest.get((pod.role, pod.index))) for pod in pods]


def split_by_newest_attempt(pods: Sequence[PodAttempt]) -> tuple[list[PodAttempt], list[PodAttempt]]:
    """(pods with a log of the newest attempt of all, pods whose newest log is of an earlier attempt). Pods without a
    log are in neither, unless no pod has a log."""
    attempts = [pod.attempt for pod in pods if pod.attempt is not None]
    if not attempts:
        return list(pods), []
    newest = max(attempts)
    return [pod for pod in pods if pod.attempt == newest], [
        pod for pod in pods if pod.attempt in {*attempts} - {newest}
    ]


def omitted_logs_message(omitted: Sequence[PodAttempt], job: str) -> str:
    """The note about the replicas that are not shown, with the command that shows them."""
    attempts = sorted({pod.attempt for pod in omitted if pod.attempt is not None})
    names = ", ".join(pod.name for pod in omitted)
    names = names if len(omitted) <= _MAX_NAMED else pluralize(len(omitted), "other replica")
    last = f"attempt {attempts[0]}" if len(attempts) == 1 else f"attempts {', '.join(map(str, attempts))}"
    return f"showing the newest attempt only; last logs of {names}: {last}: muster logs {job} --attempt {attempts[-1]}"
