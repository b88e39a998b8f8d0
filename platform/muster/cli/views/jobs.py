"""The page of `muster describe`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.api.spec import (
    ArrayStatus,
    BlamedNode,
    RoleSpec,
    TrainingJob,
    format_indices,
    index_set,
)
from muster.api.spec.pods import pod_request
from muster.cli.views import job_text
from muster.cli.views.job_rows import is_array
from muster.heartbeats.progress import final_heartbeat, leading_heartbeat, progress_line
from muster.kinds.trainingjob.stops import describe_stop
from muster.local.environment import CODE_ANNOTATION, COMMAND_ANNOTATION, STAGED_ANNOTATION
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
from muster.visibility.columns import run_time_s
from muster.workload.conditions import LOGS_WRITABLE, find_condition, has_terminated

_MAX_EVENTS = 20
_OUTCOME_WORDS = {"Succeeded": "succeeding", "NotSucceeded": "not succeeding", "Any": "ending"}


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its events, heartbeats and run folder. Events: `at`, `type`, `reason`, `message`, oldest first."""

    job: TrainingJob
    events: list[dict[str, Any]]
    heartbeats: list[dict[str, Any]]
    run_dir: Path | None  # None: inside a cluster
    now: float
    trackers: tuple[TrackerFiles, ...] = ()  # of experiment trackers, in the run folder
    goodput: str = ""  # what its time was spent on, as a sentence
    code_dir: str = ""  # on this host: the folder in which the pods start


def job_details_view(details: JobDetails) -> RenderableType:
    """The sections of the page."""
    return Group(
        _headline(details.job),
        *_status_lines(details),
        *_section("Job", _summary_table(details)),
        *(_section("Array", _array_table(details)) if is_array(details.job) else ()),
        *_section("Roles", _role_table(details.job)),
        *(_section("Placement", _placement_table(details.job)) if details.job.status.placement else ()),
        *(_section("Last failure", _failure_view(details)) if details.job.status.last_failure else ()),
        *(_section("Events", _event_table(details)) if details.events else ()),
    )


def _headline(job: TrainingJob) -> Text:
    phase = job.status.phase
    style = f"bold {job_text.PHASE_STYLES[phase]}"
    return Text.assemble(
        (job_text.qualified_name(job.metadata), "bold"), "  ", (f"{job_text.PHASE_SYMBOLS[phase]} {phase}", style)
    )


def _status_lines(details: JobDetails) -> Iterator[RenderableType]:
    job, status = details.job, details.job.status
    code, message = job_text.phase_reason(job.status)
    if status.phase != "Running" and (code or message):
        if status.phase == "Failed":
            reason = Text(job_text.reason_sentence(status), style=job_text.PHASE_STYLES["Failed"])
        else:
            reason = Text.assemble((f"{code}: ", job_text.PHASE_STYLES[status.phase]), message)
        yield Padding(reason, (0, 0, 0, 2))
    if advice := job_text.what_to_try_next(status):
        yield Padding(Text(f"try: {advice}", style="yellow"), (0, 0, 0, 2))
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
    for word, at in (("not before", spec.begin_time), ("start deadline", spec.start_deadline)):
        if at is not None:
            rows.append((word, format_time(at, now)))
    if spec.depends_on:
        ended = {one.job: one.phase for one in status.dependencies}
        needs = (
            f"{one.job} {_OUTCOME_WORDS[one.outcome]} ({ended.get(one.job, 'not ended')})" for one in spec.depends_on
        )
        rows.append(("depends on", ", ".join(needs)))
    if spec.singleton is not None:
        rows.append(("singleton", spec.singleton))
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
    ran = run_time_s(job.status, now)
    if ran is not None:
        rows.append(("ran for", format_duration(ran)))
    if details.goodput:
        rows.append(("time", details.goodput))
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
        step = "" if last.step is None else f"step {last.step}, "
        rows.append(("checkpoint", f"{step}{format_time(last.at, now)}"))
    if status.last_stop is not None:
        rows.append(("last stop", f"{describe_stop(status.last_stop)}; {format_time(status.last_stop.at, now)}"))
    if called := _collectives_text([one for one in details.heartbeats if one.get("attempt") == status.attempt]):
        rows.append(("collectives", called))
    if spec.trace is not None:
        ranks = f"ranks {', '.join(map(str, spec.trace.ranks))}" if spec.trace.ranks else "all ranks"
        end = spec.trace.start_step + spec.trace.steps
        every = f", every {spec.trace.every} steps" if spec.trace.every is not None else ""
        if spec.trace.when_slower is not None:
            every += f", after steps {spec.trace.when_slower:g} times as long"
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
    annotations = job.metadata.annotations
    for word, name in (("command", COMMAND_ANNOTATION), ("submitted code", CODE_ANNOTATION)):
        if name in annotations:
            rows.append((word, annotations[name]))
    if details.code_dir and STAGED_ANNOTATION in annotations:
        rows.append(("started in", details.code_dir))
    elif details.code_dir:
        when = "" if has_terminated(status) else "; read when an attempt starts, with all edits until then"
        rows.append(("code", f"{details.code_dir}{when}"))
    if details.run_dir is not None:
        rows.append(("run folder", str(details.run_dir)))
        rows += [(tracker.tool, tracker.command) for tracker in details.trackers]
    return _key_value_table(rows)


def _array_table(details: JobDetails) -> Table:
    job, found = details.job, details.job.status.array or ArrayStatus()
    assert job.spec.array is not None
    limit = f"{job.spec.array.index_count} in all, at most {job.spec.array.parallelism} at a time"
    rows = [("indices", f"{job.spec.array.indices}; {limit}")]
    running = format_indices(int(index) for index, one in found.active.items() if "placement" in one)
    for word, indices in (
        ("succeeded", found.succeeded),
        ("failed", found.failed),
        ("cancelled", found.cancelled),
        ("running", running),
    ):
        if indices:
            rows.append((word, indices))
    rows += [(f"index {one.index}", sanitize(one.message)) for one in found.failures]
    name = job.metadata.name
    example = found.failures[-1].index if found.failures else min(index_set(job.spec.array.indices))
    rows.append(("one index", f"muster describe {name}-{example}; muster logs {name}-{example}"))
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
