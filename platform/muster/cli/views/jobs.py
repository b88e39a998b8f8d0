"""The table of `muster jobs` and the page of `muster describe`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.api.spec import TERMINAL_PHASES, BlamedNode, RoleSpec, TrainingJob
from muster.api.spec.pods import pod_request
from muster.cli.views import job_text
from muster.heartbeats.progress import final_heartbeat, heartbeat_from_status, leading_heartbeat, progress_line
from muster.kinds.trainingjob.failure_log import is_error_line, last_log_line
from muster.text import (
    format_bytes,
    format_duration,
    format_resource,
    format_time,
    pluralize,
    sanitize,
    short_resource_name,
)
from muster.tracing import no_trace_reason
from muster.tracing.runs.trackers import TrackerFiles
from muster.workload.conditions import LOGS_WRITABLE, find_condition, has_terminated, last_eviction

_NUMERIC_COLUMNS = ("PRIO", "PODS", "AGE", "RUNTIME")
_DROP_ORDER = ("PRIO", "AGE", "QUEUE", "RUNTIME", "PODS")  # dropped first to last in a narrow terminal
_GAP, _MAX_QUEUE_WIDTH, _MIN_REASON_WIDTH = 2, 40, 30  # columns of the terminal
_MAX_LAST_LINE = 200  # characters of a failed pod's last log line
_PHASE_ORDER = ("Running", "Terminating", "Admitted", "Pending", "Suspended", "Ended")
_MAX_EVENTS = 20


def sorted_for_display(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Running jobs, then terminating, then waiting ones in queue order, then finished ones, newest first."""

    def key(job: TrainingJob) -> tuple[int, str, int, float, str]:
        status = job.status
        ended = -math.inf if status.finished_at is None else -status.finished_at
        has_ended = status.phase in TERMINAL_PHASES
        over = ended if has_ended else (status.submitted_at or 0.0)
        rank = _PHASE_ORDER.index("Ended" if has_ended else status.phase)
        queue = "" if has_ended else job.spec.queue
        return rank, queue, status.queue_position or 1 << 30, over, job_text.qualified_name(job)

    return sorted(jobs, key=key)


def job_table(jobs: Sequence[TrainingJob], now: float, width: int = 160) -> RenderableType:
    """One line per job, with the namespace only if there are several. Job names are never truncated: if `width` is too
    small, other columns are dropped, and at last the reason moves to a line below its job."""
    several = len({job.metadata.namespace or "default" for job in jobs}) > 1
    rows = [_row(job, now, several) for job in sorted_for_display(jobs)]
    widths = {title: max(cell_len(title), *(row[title].cell_len for row in rows)) for title in rows[0]} if rows else {}
    shown = list(_columns_that_fit(widths, width - _MIN_REASON_WIDTH))
    in_line = _total_width(widths[title] for title in shown) + _MIN_REASON_WIDTH <= width
    if not in_line:
        shown = list(_columns_that_fit(widths, width))
    reasons = [_reason_text(job, now) for job in sorted_for_display(jobs)]
    tables = [_table(shown, widths, width)]
    if in_line:
        tables[0].add_column("REASON", ratio=1, overflow="fold")
    parts: list[RenderableType] = [tables[0]]
    for row, reason in zip(rows, reasons, strict=True):
        tables[-1].add_row(*(row[title] for title in shown), *((reason,) if in_line else ()))
        if not in_line and reason:
            tables.append(_table(shown, widths, width, header=False))
            parts += [Padding(reason, (0, 0, 0, _GAP)), tables[-1]]
    return Group(*(part for part in parts if not isinstance(part, Table) or part.row_count or part is tables[0]))


def _table(shown: Sequence[str], widths: Mapping[str, int], width: int, *, header: bool = True) -> Table:
    """A table with fixed column widths, so that several below each other have aligned columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0), show_header=header)
    for title in shown:
        fits = widths[title] <= width
        table.add_column(
            title, justify="right" if title in _NUMERIC_COLUMNS else "left", no_wrap=fits, overflow="fold",
            min_width=widths[title] if fits else None,
        )  # fmt: skip
    return table


def _total_width(widths: Iterable[int]) -> int:
    """Terminal columns that table columns of these widths take, gaps included."""
    return sum(width + _GAP for width in widths)


def _columns_that_fit(widths: Mapping[str, int], width: int) -> Iterator[str]:
    """The titles of the columns that fit into `width`, without REASON."""
    fitting = dict(widths)
    for title in _DROP_ORDER:
        if _total_width(fitting.values()) <= width:
            break
        fitting.pop(title, None)
    yield from fitting


def _row(job: TrainingJob, now: float, with_namespace: bool) -> dict[str, Text]:
    phase, ran = job.status.phase, job_text.run_time_s(job, now)
    created_at = job.status.submitted_at or job.metadata.creation_timestamp
    return {
        "JOB": Text(job_text.qualified_name(job) if with_namespace else job.metadata.name),
        "QUEUE": Text(job_text.truncate(job.spec.queue, _MAX_QUEUE_WIDTH)),
        "PRIO": Text(job_text.priority(job)),
        "PHASE": Text(f"{job_text.PHASE_SYMBOLS[phase]} {phase}", style=job_text.PHASE_STYLES[phase]),
        "PODS": Text(job_text.pod_counts(job)),
        "AGE": Text("" if created_at is None else format_duration(now - created_at)),
        "RUNTIME": Text("" if ran is None else format_duration(ran)),
    }


def _reason_text(job: TrainingJob, now: float) -> Text:
    status, text = job.status, Text()
    if status.phase == "Pending":
        code, message = job_text.phase_reason(job)
        if status.queue_position:
            text.append(f"#{status.queue_position} ", style="bold")
        if status.estimated_start is not None:
            text.append(f"~{format_time(status.estimated_start, now)} ", style="cyan")
        text.append(f"{code}: " if code else "", style="yellow")
        text.append(message)
    elif status.phase in ("Failed", "Cancelled", "Terminating"):
        code, message = job_text.phase_reason(job)
        line = job_text.truncate(last_log_line(status.last_failure), _MAX_LAST_LINE)
        text.append(f"{code}: " if code else "", style="red")
        parts = (line, message) if is_error_line(line) else (message, line)
        text.append(parts[0])
        text.append(f"{'; ' if all(parts) else ''}{parts[1]}", style="dim")
    elif status.phase in ("Running", "Admitted"):
        if status.progress is not None and status.progress.attempt == status.attempt:
            text.append(f"{progress_line(heartbeat_from_status(status.progress))}  ")
        text.append(", ".join(sorted({share.node for role in status.placement for share in role.nodes})), style="dim")
    evicted = last_eviction(status)
    if evicted is not None:
        text.append(
            f"  {evicted.reason} {format_duration(max(0.0, now - evicted.last_transition_time))} ago", style="dim"
        )
    if status.restarts:
        text.append(f"  restarts {status.restarts}", style="dim")
    return text


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its events, heartbeats and run folder. Events: `at`, `type`, `reason`, `message`, oldest first."""

    job: TrainingJob
    events: list[dict[str, Any]]
    heartbeats: list[dict[str, Any]]
    run_dir: Path | None  # None: inside a cluster
    now: float
    trackers: tuple[TrackerFiles, ...] = ()  # of experiment trackers, in the run folder
    code_dir: str = ""  # on this host: the folder in which the pods start


def job_details_view(details: JobDetails) -> RenderableType:
    """The sections of the page."""
    return Group(
        _headline(details.job),
        *_status_lines(details),
        *_section("Job", _summary_table(details)),
        *_section("Roles", _role_table(details.job)),
        *(_section("Placement", _placement_table(details.job)) if details.job.status.placement else ()),
        *(_section("Last failure", _failure_view(details)) if details.job.status.last_failure else ()),
        *(_section("Events", _event_table(details)) if details.events else ()),
    )


def _headline(job: TrainingJob) -> Text:
    phase = job.status.phase
    style = f"bold {job_text.PHASE_STYLES[phase]}"
    return Text.assemble(
        (job_text.qualified_name(job), "bold"), "  ", (f"{job_text.PHASE_SYMBOLS[phase]} {phase}", style)
    )


def _status_lines(details: JobDetails) -> Iterator[RenderableType]:
    job, status = details.job, details.job.status
    code, message = job_text.phase_reason(job)
    if status.phase != "Running" and (code or message):
        yield Padding(Text.assemble((f"{code}: ", job_text.PHASE_STYLES[status.phase]), message), (0, 0, 0, 2))
    logs = find_condition(status, LOGS_WRITABLE)
    if logs is not None and logs.status == "False":
        yield Padding(Text.assemble((f"{logs.reason}: ", "red"), logs.message), (0, 0, 0, 2))
    if status.phase == "Pending" and status.queue_position is not None:
        position = "next" if status.queue_position == 1 else f"number {status.queue_position}"
        text = f"{position} in queue {job.spec.queue}"
        if status.estimated_start is not None:
            text += f", starts about {format_time(status.estimated_start, details.now)}"
        yield Padding(Text(text), (0, 0, 0, 2))
    heartbeat = leading_heartbeat(details.heartbeats)
    if heartbeat is not None:
        live = status.phase in ("Running", "Admitted")
        style = "" if status.phase == "Running" else "dim"
        if line := progress_line(heartbeat if live else final_heartbeat(heartbeat)):
            yield Padding(Text(line, style=style), (0, 0, 0, 2))


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(title, style="bold")
    yield Padding(body, (0, 0, 0, 2))


def _collectives_text(heartbeats: Sequence[Mapping[str, Any]]) -> str:
    """`12 per step, 1.5 GiB`, or the ranks with the fewest and the most, which should not differ without a pipeline.
    The bytes are those of the rank with the most."""
    rates = sorted(
        (one["collectives_per_step"], one["rank"])
        for one in heartbeats
        if isinstance(one.get("collectives_per_step"), int | float) and isinstance(one.get("rank"), int)
    )
    if not rates or not rates[-1][0]:
        return ""
    (fewest, low), (most, high) = rates[0], rates[-1]
    sizes = [one["collective_bytes_per_step"] for one in heartbeats if one.get("collective_bytes_per_step") is not None]
    size = f", {format_bytes(max(sizes))}" if sizes else ""
    if len(rates) == 1 or most == fewest:
        return f"{most:g} per step{size}"
    return f"{fewest:g} per step on rank {low} to {most:g} on rank {high}{size}"


def _summary_table(details: JobDetails) -> Table:
    job, spec, status, now = details.job, details.job.spec, details.job.status, details.now
    rows: list[tuple[str, str]] = [("queue", f"{spec.queue}, priority {job_text.priority(job)}")]
    if spec.priority_class_name is not None:
        rows.append(("priority class", spec.priority_class_name))
    if spec.max_runtime_seconds:
        rows.append(("max runtime", format_duration(spec.max_runtime_seconds)))
    if spec.flavors:
        rows.append(("flavors", ", ".join(spec.flavors)))
    if spec.topology:
        levels = (("required", spec.topology.required), ("preferred", spec.topology.preferred))
        rows.append(("topology", ", ".join(f"{level} {word}" for word, level in levels if level)))
    for word, at in (
        ("submitted", status.submitted_at or job.metadata.creation_timestamp),
        ("admitted", status.admitted_at),
        ("started", status.started_at),
        ("finished", status.finished_at),
    ):
        if at is not None:
            rows.append((word, format_time(at, now)))
    ran = job_text.run_time_s(job, now)
    if ran is not None:
        rows.append(("ran for", format_duration(ran)))
    policy = spec.failure_policy
    rows.append(("attempt", f"{status.attempt}; {status.restarts} of {pluralize(policy.max_restarts, 'restart')} used"))
    if status.start_retries:
        limit = "" if policy.max_start_retries is None else f" of {policy.max_start_retries}"
        rows.append(("start retries", f"{status.start_retries}{limit}"))
    if status.requeue_after is not None and status.requeue_after > now:
        rows.append(("requeue after", format_time(status.requeue_after, now)))
    if status.rejections:
        rows.append(("rejected starts", str(status.rejections)))
    if status.node_losses:
        rows.append(("node losses", str(status.node_losses)))
    if status.blamed_nodes:
        rows.append(("avoided nodes", ", ".join(_blame_text(entry, now) for entry in status.blamed_nodes)))
    if status.last_checkpoint is not None:
        last = status.last_checkpoint
        rows.append(("checkpoint", f"step {last.step}, {format_time(last.at, now)}"))
    if called := _collectives_text([one for one in details.heartbeats if one.get("attempt") == status.attempt]):
        rows.append(("collectives", called))
    if spec.trace is not None:
        ranks = f"ranks {', '.join(map(str, spec.trace.ranks))}" if spec.trace.ranks else "all ranks"
        end = spec.trace.start_step + spec.trace.steps
        every = f", every {spec.trace.every} steps" if spec.trace.every is not None else ""
        rows.append(("trace", f"steps {spec.trace.start_step} to {end - 1}{every}, {ranks}"))
    if status.traces is not None:
        files = pluralize(status.traces.files, "file")
        where = f" in {status.traces.location}" if status.traces.location else ""
        if spec.trace is not None and not status.traces.files and has_terminated(status):
            rows.append(("traces", f"none recorded: {no_trace_reason(spec.trace.start_step, details.heartbeats)}"))
        else:
            rows.append(("traces", files + where))
        if status.traces.report:
            rows.append(("report", status.traces.report))
    if details.code_dir:
        when = "" if has_terminated(status) else "; read when an attempt starts, with all edits until then"
        rows.append(("code", f"{details.code_dir}{when}"))
    if details.run_dir is not None:
        rows.append(("run folder", str(details.run_dir)))
        rows += [(tracker.tool, tracker.command) for tracker in details.trackers]
    return _key_value_table(rows)


def _blame_text(entry: BlamedNode, now: float) -> str:
    """`n1 until 12:00:00 (PodRejected)`."""
    return f"{entry.node} until {format_time(entry.until, now)}" + (f" ({entry.reason})" if entry.reason else "")


def _role_table(job: TrainingJob) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for role in job.spec.roles:
        pods = pluralize(role.replicas, "pod")
        if role.is_elastic:
            pods = f"{role.min_replicas} to {role.replicas} pods"
            if job.spec.elastic_replicas is not None:
                pods += f", at most {job.spec.elastic_replicas} now"
        table.add_row(Text(role.name, style="bold"), pods, _request(role), Text(_command(role), style="dim"))
    return table


def _request(role: RoleSpec) -> str:
    total = {name: value for name, value in pod_request(role.template.spec) if name != "pods"}
    return (
        ", ".join(f"{format_resource(value, name)} {short_resource_name(name)}" for name, value in total.items())
        or "no resource requests"
    )


def _command(role: RoleSpec) -> str:
    main = role.template.spec.containers[0]
    words = " ".join([*main.command, *main.args])
    words = sanitize(words)
    return words if len(words) <= 300 else f"{words[:297]}..."


def _placement_table(job: TrainingJob) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for role in job.status.placement:
        for share in role.nodes:
            table.add_row(
                f"{role.role} {share.indexes}", Text(share.node, style="cyan"), Text(role.flavor, style="dim")
            )
    return table


def _failure_view(details: JobDetails) -> RenderableType:
    failure = details.job.status.last_failure
    assert failure is not None
    message = f"pod {failure.pod}" + (f" on {failure.node}" if failure.node else "")
    if failure.exit_code is not None:
        message += f", exit code {failure.exit_code}{_signal_name(failure.exit_code)}"
    if failure.reason:
        message += f", {failure.reason}"
    if failure.at is not None:
        message += f", {format_time(failure.at, details.now)}"
    return Group(Text(message, style="red"), Text(sanitize(failure.log_tail).rstrip("\n"), style="dim"))


def _signal_name(exit_code: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""


def _event_table(details: JobDetails) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    omitted = len(details.events) - _MAX_EVENTS
    if omitted > 0:
        table.add_row("", "", Text(f"{pluralize(omitted, 'older event')} not shown", style="dim"))
    for event in details.events[-_MAX_EVENTS:]:
        style = "yellow" if event.get("type") == "Warning" else "green"
        ago = Text(f"{format_duration(details.now - float(event['at']))} ago", style="dim")
        times = f" (×{event['count']})" if event.get("count", 1) > 1 else ""
        message = Text(f"{sanitize(event['message'])}{times}", overflow="fold")
        table.add_row(ago, Text(str(event["reason"]), style=style), message)
    return table


def _key_value_table(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table
