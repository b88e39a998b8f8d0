"""The verb `logs`: what the pods of a job wrote, merged and filtered."""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.client import Client, connect
from muster.cli.completing import JobName, Json, Namespace, split_name
from muster.cli.outcome import usage_error
from muster.cli.printing import console

if TYPE_CHECKING:
    from muster.spec import TrainingJob

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command()(logs)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod whose log is shown."""

    role: str
    index: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Which part of a log: one attempt (None: the newest), between two Unix times, the last lines of that, and of
    those the lines that match."""

    attempt: int | None
    since: float | None
    until: float | None
    tail: int | None
    follow: bool
    pattern: re.Pattern[str] | None

    @property
    def is_all(self) -> bool:
        """Whether nothing of the newest log is left out."""
        return all(part is None for part in (self.attempt, self.since, self.until, self.tail, self.pattern))


def logs(
    job: JobName,
    role: Annotated[str | None, typer.Option(help="Pods of this role only.")] = None,
    index: Annotated[list[int] | None, typer.Option("--index", "-i", help="Pods of this index only.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="This attempt instead of the newest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    since: Annotated[str | None, typer.Option(metavar="10m", help="From this time, or so long ago.")] = None,
    until: Annotated[str | None, typer.Option(metavar="5m", help="Up to this time, or so long ago.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last lines of each pod only.", metavar="N")] = None,
    regex: Annotated[str | None, typer.Option("--regex", "-e", help="Lines that match only.")] = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Print what the pods of a job wrote; several pods are told apart by a prefix."""
    from muster.cli.views.amounts import parse_moment

    now, (name, space) = time.time(), split_name(job, namespace)
    excerpt = Excerpt(
        attempt=attempt,
        since=None if since is None else parse_moment(since, now, "--since"),
        until=None if until is None else parse_moment(until, now, "--until"),
        tail=tail,
        follow=follow,
        pattern=None if regex is None else _compiled(regex),
    )
    client = connect()
    found = client.job(name, space)
    pods = _pods(found, role, index) if attempt is None else _pods_of_attempt(found, role, index)
    if follow and found.status.phase in ("Pending", "Suspended", "Admitted"):
        _say_why_silent(found)  # now: what comes may take hours
    print_lines = _print_json if as_json else _print
    any_line = print_lines(client, (name, space), pods, excerpt)
    if not any_line and not follow and excerpt.is_all:
        _say_why_silent(found)


def _say_why_silent(job: TrainingJob) -> None:
    """On stderr, which is no part of the log."""
    from muster.cli.views.job_words import silence

    print(silence(job), file=sys.stderr, flush=True)


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        usage_error(f"--regex: {regex!r} is no regular expression: {error}; write one such as 'step [0-9]+'", "--regex")


def _pods(job: TrainingJob, role: str | None, indexes: list[int] | None) -> list[Pod]:
    roles = job.spec.roles
    if role is not None and role not in {item.name for item in roles}:
        usage_error(
            f"--role: {role!r} is no role of the job; write one of {', '.join(item.name for item in roles)}", "--role"
        )
    pods = [Pod(item.name, index) for item in roles if role in (None, item.name) for index in range(item.replicas)]
    chosen = [pod for pod in pods if not indexes or pod.index in indexes]
    if not chosen:
        told = ", ".join(map(str, indexes or ()))
        usage_error(f"--index: {told} is no index of the job; write 0 to {max(pod.index for pod in pods)}", "--index")
    return chosen


def _pods_of_attempt(job: TrainingJob, role: str | None, indexes: list[int] | None) -> list[Pod]:
    """Like `_pods`, of an attempt that may have had roles and replicas that the job has no more: whoever names one of
    those gets its log if there is one, and is told by the cluster if there is none."""
    names = [role] if role is not None else [item.name for item in job.spec.roles]
    if indexes and min(indexes) >= 0 and len(names) == 1:
        return [Pod(names[0], index) for index in sorted(set(indexes))]
    return _pods(job, role, indexes)


def _print(client: Client, job: tuple[str, str], pods: list[Pod], excerpt: Excerpt) -> bool:
    """True when there was a line."""
    any_line, out = False, console()
    colours = {pod: _COLOURS[place % len(_COLOURS)] for place, pod in enumerate(pods)}
    width = max(len(pod.name) for pod in pods)
    for pod, line in _merged(client, job, pods, excerpt):
        any_line = True
        if len(pods) > 1:
            out.print(f"{pod.name:{width}} │ ", style=colours[pod], end="", markup=False, soft_wrap=True)
        out.file.write(line + "\n")
        if excerpt.follow:
            out.file.flush()
    return any_line


def _print_json(client: Client, job: tuple[str, str], pods: list[Pod], excerpt: Excerpt) -> bool:
    """One object a line when following, which has no end to close a list at; else a list. True when there was one."""
    import json

    from muster.cli.printing import print_json

    rows = ({"role": pod.role, "index": pod.index, "line": line} for pod, line in _merged(client, job, pods, excerpt))
    if not excerpt.follow:
        found = list(rows)
        print_json(found)
        return bool(found)
    any_line = False
    for row in rows:
        any_line = True
        print(json.dumps(row), flush=True)
    return any_line


def _merged(client: Client, job: tuple[str, str], pods: list[Pod], excerpt: Excerpt) -> Iterator[tuple[Pod, str]]:
    """The pods' lines: one pod after the other, or as they come when following."""
    if excerpt.follow and len(pods) > 1:
        lines = _as_they_come(client, job, pods, excerpt)
    else:
        lines = ((pod, line) for pod in pods for line in _lines(client, job, pod, excerpt))
    for pod, line in lines:
        if excerpt.pattern is None or excerpt.pattern.search(line):
            yield pod, line


def _as_they_come(client: Client, job: tuple[str, str], pods: list[Pod], excerpt: Excerpt) -> Iterator[tuple[Pod, str]]:
    arriving: queue.Queue[tuple[Pod, str | Exception | None]] = queue.Queue(maxsize=10_000)

    def read(pod: Pod) -> None:
        try:
            for line in _lines(client, job, pod, excerpt):
                arriving.put((pod, line))
            arriving.put((pod, None))
        except Exception as error:  # raised again where the verb can tell it
            arriving.put((pod, error))

    for pod in pods:
        threading.Thread(target=read, args=(pod,), daemon=True).start()
    left = len(pods)
    while left:
        pod, line = arriving.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            left -= 1
        else:
            yield pod, line


def _lines(client: Client, job: tuple[str, str], pod: Pod, excerpt: Excerpt) -> Iterator[str]:
    name, namespace = job
    return client.log_lines(
        name,
        namespace,
        pod.role,
        pod.index,
        attempt=excerpt.attempt,
        since=excerpt.since,
        until=excerpt.until,
        tail=excerpt.tail,
        follow=excerpt.follow,
    )
