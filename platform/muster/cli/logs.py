"""The command `logs`: the output of a job's pods, merged and filtered."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.completion import JobArgument, JsonOption, NamespaceOption, split_job_name
from muster.cli.connect import ClusterClient, connect
from muster.cli.exit_codes import usage_error
from muster.cli.log_pods import (
    PodAttempt,
    omitted_logs_message,
    select_pods,
    select_pods_of_attempt,
    split_by_newest_attempt,
    with_newest_log_attempt,
)
from muster.cli.output import console, print_note
from muster.log_options import DEFAULT_LOG_OPTIONS, LogOptions
from muster.text.sanitize import sanitize_keep_colors

if TYPE_CHECKING:
    from muster.spec import TrainingJob

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(logs)


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Options of a log read other than the attempt, and a pattern that lines must match."""

    options: LogOptions
    pattern: re.Pattern[str] | None

    @property
    def is_unfiltered(self) -> bool:
        """Whether all lines are shown; following does not count as a filter."""
        return self.pattern is None and replace(self.options, follow=False) == DEFAULT_LOG_OPTIONS


def logs(
    job: JobArgument,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help="Pods of this role only.")] = None,
    index: Annotated[
        list[int] | None, typer.Option("--index", "-i", metavar="N", help="Pods of this index only.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="This attempt instead of the newest; the first is 0.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    since: Annotated[str | None, typer.Option(metavar="10m", help="From this time, or duration ago.")] = None,
    until: Annotated[str | None, typer.Option(metavar="5m", help="Up to this time, or duration ago.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last lines of each pod only.", metavar="N")] = None,
    regex: Annotated[str | None, typer.Option("--regex", "-e", metavar="REGEX", help="Lines that match only.")] = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of a job's pods, with a prefix per pod if there are several."""
    from muster.spec import TERMINAL_PHASES
    from muster.text.humanize import parse_time

    now, (name, space) = time.time(), split_job_name(job, namespace)
    options = LogOptions(
        since=None if since is None else parse_time(since, now, "--since"),
        until=None if until is None else parse_time(until, now, "--until"),
        tail_lines=tail,
        follow=follow,
    )
    search = LogFilter(options, None if regex is None else _compile_regex(regex))
    client = connect()
    found = client.job(name, space)
    pods = select_pods(found, role, index) if attempt is None else select_pods_of_attempt(found, role, index, attempt)
    is_live = follow and found.status.phase not in ("Terminating", *TERMINAL_PHASES)  # shows the current attempt
    if attempt is None and not is_live:
        pods = with_newest_log_attempt(pods, client.log_attempts(name, space))
        if not index:
            pods, omitted = split_by_newest_attempt(pods)
            if omitted:
                print_note(omitted_logs_message(omitted, job))
    if follow and found.status.phase in ("Pending", "Suspended", "Admitted"):
        _print_no_output_reason(found)  # before waiting: the first line may take hours
    lines = _merge_lines(client, (name, space), pods, search)
    any_line = _print_json_lines(lines, found.status.attempt, follow) if as_json else _print_lines(lines, pods, follow)
    if not any_line and not follow and attempt is None and search.is_unfiltered:
        _print_no_output_reason(found)


def _print_no_output_reason(job: TrainingJob) -> None:
    from muster.cli.views.job_text import no_output_reason

    print_note(no_output_reason(job))


def _compile_regex(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        message = f"--regex: must be a regular expression such as 'step [0-9]+'; got {regex!r}: {error}"
        usage_error(message, "--regex")


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


def _merge_lines(
    client: ClusterClient, job: tuple[str, str], pods: list[PodAttempt], log_filter: LogFilter
) -> Iterator[tuple[PodAttempt, str]]:
    """The lines of all pods: one pod after the other, or in order of arrival when following."""
    options = log_filter.options
    if options.follow and len(pods) > 1:
        lines = _interleave_lines(client, job, pods, options)
    else:
        lines = ((pod, line) for pod in pods for line in _pod_lines(client, job, pod, options))
    for pod, line in lines:
        if log_filter.pattern is None or log_filter.pattern.search(line):
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
