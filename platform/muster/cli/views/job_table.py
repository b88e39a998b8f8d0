"""The table of `muster jobs`: TrainingJobs, and objects of other kinds that queue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.api.spec import (
    TERMINAL_PHASES,
    ObjectMeta,
    QueueingStatus,
    TrainingJob,
    TrainingJobStatus,
    WorkloadRecord,
)
from muster.cli.views import job_text
from muster.heartbeats.progress import heartbeat_from_status, progress_line
from muster.kinds.trainingjob.failure_log import is_error_line, last_log_line
from muster.text import format_duration, format_time
from muster.workload.conditions import last_eviction

_NUMERIC_COLUMNS = ("PRIO", "PODS", "AGE", "RUNTIME")
_DROP_ORDER = ("PRIO", "AGE", "KIND", "QUEUE", "RUNTIME", "PODS")  # dropped first to last in a narrow terminal
_GAP, _MAX_QUEUE_WIDTH, _MIN_REASON_WIDTH = 2, 40, 30  # columns of the terminal
_MAX_LAST_LINE = 200  # characters of a failed pod's last log line
_PHASE_ORDER = ("Running", "Terminating", "Admitted", "Pending", "Suspended", "Ended")


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job of any kind as a row of the table. `document`: what `--json` prints."""

    kind: str
    metadata: ObjectMeta
    queue: str
    priority: str
    pods: str
    status: QueueingStatus
    document: TrainingJob | WorkloadRecord


def listed_job(job: TrainingJob) -> ListedJob:
    """A TrainingJob as a row."""
    priority, pods = job_text.priority(job), job_text.pod_counts(job)
    return ListedJob("TrainingJob", job.metadata, job.spec.queue, priority, pods, job.status, job)


def listed_object(record: WorkloadRecord) -> ListedJob:
    """An object of another kind as a row."""
    status, reference = record.status, record.spec.object_ref
    metadata = record.metadata.model_copy(update={"name": reference.name, "uid": reference.uid})
    priority = "" if status.priority is None else str(status.priority)
    pods = f"{status.pods_ready}/{status.pods_wanted}" if status.phase in ("Admitted", "Running") else ""
    return ListedJob(reference.kind, metadata, record.spec.queue, priority, pods, status, record)


def sorted_for_display(jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """Running jobs, then terminating, then waiting ones in queue order, then finished ones, newest first."""

    def key(job: ListedJob) -> tuple[int, str, int, float, str]:
        status = job.status
        ended = -math.inf if status.finished_at is None else -status.finished_at
        has_ended = status.phase in TERMINAL_PHASES
        over = ended if has_ended else (status.submitted_at or 0.0)
        rank = _PHASE_ORDER.index("Ended" if has_ended else status.phase)
        queue = "" if has_ended else job.queue
        return rank, queue, status.queue_position or 1 << 30, over, job_text.qualified_name(job.metadata)

    return sorted(jobs, key=key)


def job_table(jobs: Sequence[ListedJob], now: float, width: int = 160, *, wide: bool = True) -> RenderableType:
    """One line per job, with namespace and kind only if there are several. Job names are never truncated: if `width` is
    too small, other columns are dropped, and at last the reason moves to a line below its job. Without `wide`, a reason
    is cut to one line."""
    several = len({job.metadata.namespace or "default" for job in jobs}) > 1
    has_kinds = any(job.kind != "TrainingJob" for job in jobs)
    rows = [_row(job, now, several, has_kinds) for job in sorted_for_display(jobs)]
    widths = {title: max(cell_len(title), *(row[title].cell_len for row in rows)) for title in rows[0]} if rows else {}
    shown = list(_columns_that_fit(widths, width - _MIN_REASON_WIDTH))
    in_line = _total_width(widths[title] for title in shown) + _MIN_REASON_WIDTH <= width
    if not in_line:
        shown = list(_columns_that_fit(widths, width))
    reasons = [_reason_text(job, now) for job in sorted_for_display(jobs)]
    if not in_line and not wide:
        for reason in reasons:
            reason.truncate(width - _GAP, overflow="ellipsis")
    tables = [_table(shown, widths, width)]
    if in_line:
        tables[0].add_column("REASON", ratio=1, overflow="fold" if wide else "ellipsis", no_wrap=not wide)
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


def _row(job: ListedJob, now: float, with_namespace: bool, with_kind: bool) -> dict[str, Text]:
    phase, ran = job.status.phase, job_text.run_time_s(job.status, now)
    created_at = job.status.submitted_at or job.metadata.creation_timestamp
    return {
        "JOB": Text(job_text.qualified_name(job.metadata) if with_namespace else job.metadata.name),
        **({"KIND": Text(job.kind)} if with_kind else {}),
        "QUEUE": Text(job_text.truncate(job.queue, _MAX_QUEUE_WIDTH)),
        "PRIO": Text(job.priority),
        "PHASE": Text(f"{job_text.PHASE_SYMBOLS[phase]} {phase}", style=job_text.PHASE_STYLES[phase]),
        "PODS": Text(job.pods),
        "AGE": Text("" if created_at is None else format_duration(now - created_at)),
        "RUNTIME": Text("" if ran is None else format_duration(ran)),
    }


def _reason_text(job: ListedJob, now: float) -> Text:
    status, text = job.status, Text()
    of_training = status if isinstance(status, TrainingJobStatus) else None
    if status.phase == "Pending":
        code, message = job_text.phase_reason(status)
        if status.queue_position:
            text.append(f"#{status.queue_position} ", style="bold")
        if status.estimated_start is not None:
            text.append(f"~{format_time(status.estimated_start, now)} ", style="cyan")
        text.append(f"{code}: " if code else "", style="yellow")
        text.append(message)
    elif status.phase in ("Failed", "Cancelled", "Terminating"):
        code, message = job_text.phase_reason(status)
        failure = None if of_training is None else of_training.last_failure
        line = job_text.truncate(last_log_line(failure), _MAX_LAST_LINE)
        text.append(f"{code}: " if code else "", style="red")
        parts = (line, message) if is_error_line(line) else (message, line)
        text.append(parts[0])
        text.append(f"{'; ' if all(parts) else ''}{parts[1]}", style="dim")
    elif status.phase in ("Running", "Admitted"):
        progress = None if of_training is None else of_training.progress
        if progress is not None and progress.attempt == status.attempt:
            text.append(f"{progress_line(heartbeat_from_status(progress))}  ")
        text.append(", ".join(sorted({share.node for role in status.placement for share in role.nodes})), style="dim")
    evicted = last_eviction(status)
    if evicted is not None:
        text.append(
            f"  {evicted.reason} {format_duration(max(0.0, now - evicted.last_transition_time))} ago", style="dim"
        )
    if status.restarts:
        text.append(f"  restarts {status.restarts}", style="dim")
    return text
