"""Jobs of every kind as rows: the values of the columns of `muster jobs`, as text and to sort by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rich.text import Text

from muster.api.spec import (
    TERMINAL_PHASES,
    QueueingStatus,
    TrainingJob,
    TrainingJobStatus,
    WorkloadRecord,
)
from muster.api.spec.pods import pod_request
from muster.cli.views import job_text
from muster.heartbeats.progress import eta_s, heartbeat_from_status, progress_line
from muster.kinds.trainingjob.failure_cause import failure_cause
from muster.kinds.trainingjob.failure_log import last_log_line
from muster.text import format_duration, format_time, short_resource_name
from muster.usage.segments import USER_LABEL
from muster.visibility.columns import JOB_COLUMNS, Column, run_time_s
from muster.visibility.jobs import ReadableJob, job_summary, readable_job
from muster.visibility.types import JobSummary
from muster.workload.conditions import last_eviction
from muster.workload.placement import from_status

_MAX_QUEUE_WIDTH = 40  # columns of the terminal
_MAX_LAST_LINE = 200  # characters of a failed pod's last log line
_PHASE_ORDER = ("Running", "Terminating", "Admitted", "Pending", "Suspended", "Ended")


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job of any kind as a row of the table. `document`: what `--json` prints. `gpus`: of all its pods; None: not
    known. `heartbeat`: the progress of the present attempt."""

    summary: JobSummary
    document: TrainingJob | WorkloadRecord
    gpus: int | None = None
    heartbeat: Mapping[str, Any] | None = None

    @property
    def status(self) -> QueueingStatus:
        return self.document.status

    @property
    def has_ended(self) -> bool:
        """Whether its phase is final."""
        return self.status.phase in TERMINAL_PHASES

    def gpu_hours(self, now: float) -> float | None:
        """Its GPUs times the run time of all its attempts."""
        ran = None if is_array(self.document) else run_time_s(self.status, now)
        return None if ran is None or self.gpus is None else self.gpus * ran / 3600

    def eta_s(self, now: float) -> float | None:
        """Seconds to its last step, if it runs and has said so."""
        if self.heartbeat is None or self.status.phase != "Running":
            return None
        left, at = eta_s(self.heartbeat), self.heartbeat.get("at")
        return None if left is None else max(0.0, left - max(0.0, now - at if isinstance(at, int | float) else 0.0))


def listed_job(job: TrainingJob, heartbeat: Mapping[str, Any] | None = None) -> ListedJob:
    """A TrainingJob as a row; `heartbeat`: its leading rank's, where the status does not have the progress."""
    progress = job.status.progress
    if progress is not None and progress.attempt == job.status.attempt:
        heartbeat = heartbeat_from_status(progress)
    return ListedJob(job_summary(readable_job(job)), job, _gpus(job), heartbeat)


def is_array(document: TrainingJob | WorkloadRecord) -> TypeGuard[TrainingJob]:
    """Whether a row is an array, and not one of its indices."""
    return isinstance(document, TrainingJob) and document.spec.array is not None and "/" not in document.metadata.uid


def listed_object(record: WorkloadRecord) -> ListedJob:
    """An object of another kind as a row."""
    status, reference = record.status, record.spec.object_ref
    metadata = record.metadata.model_copy(update={"name": reference.name, "uid": reference.uid})
    job = ReadableJob(reference.kind, metadata, status, record.spec.queue, status.priority, 0, 0)
    return ListedJob(job_summary(job), record)


def _gpus(job: TrainingJob) -> int:
    """The GPUs of all pods: of those that it has or had at its end, else of the most that it may have."""
    placed = {part.role: part.replicas for part in from_status(job.status.placement)}
    total, gangs = 0, job_text.gang_count(job)
    for role in job.spec.roles:
        request = pod_request(role.template.spec)
        of_pod = sum(amount for name, amount in request if short_resource_name(name) == "gpu")
        total += of_pod * placed.get(role.name, job.spec.max_replicas(role))
    return total * gangs


def sorted_for_display(jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """Running jobs, then terminating, then waiting ones in queue order, then finished ones, newest first."""

    def key(job: ListedJob) -> tuple[int, str, int, float, str]:
        status = job.status
        ended = -math.inf if status.finished_at is None else -status.finished_at
        over = ended if job.has_ended else (status.submitted_at or 0.0)
        rank = _PHASE_ORDER.index("Ended" if job.has_ended else status.phase)
        queue, meta = "" if job.has_ended else job.summary.queue, job.summary.metadata
        return rank, queue, status.queue_position or 1 << 30, over, f"{meta.namespace}/{meta.name}"

    return sorted(jobs, key=key)


def sorted_by(jobs: Sequence[ListedJob], column: str, now: float, *, descending: bool) -> list[ListedJob]:
    """In the order of a column; jobs without a value last, equal ones as `sorted_for_display`."""
    values = [(COLUMNS[column].value(job, now), job) for job in sorted_for_display(jobs)]
    known = [(value, job) for value, job in values if value not in (None, "")]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [job for _, job in known] + [job for value, job in values if value in (None, "")]


def _step(job: ListedJob) -> int | None:
    return None if job.heartbeat is None else job.heartbeat.get("step")


def _exit_code(job: ListedJob) -> int | None:
    """0 of a job that succeeded, else that of its last failure, if it failed."""
    status = job.status
    if status.phase == "Succeeded":
        return 0
    failure = status.last_failure if isinstance(status, TrainingJobStatus) and status.phase == "Failed" else None
    return None if failure is None else failure.exit_code


def _step_text(job: ListedJob) -> str:
    heartbeat = job.heartbeat or {}
    step, steps = heartbeat.get("step"), heartbeat.get("steps")
    return "" if step is None else f"{step}/{steps}" if steps else str(step)


def _of_summary(column: Column) -> Column:
    """A column of what every table of jobs has, for a row of this table."""
    text = column.text
    return replace(
        column,
        value=lambda job, now: column.value(job.summary, now),
        text=None if text is None else lambda job: text(job.summary),
    )


def _at(title: str, at: Callable[[ListedJob], float | None]) -> Column:
    return Column(title, lambda job, now: at(job), "time")


COLUMNS: Mapping[str, Column] = {
    column.heading: column
    for column in (
        *map(_of_summary, JOB_COLUMNS),
        Column("User", lambda job, now: job.document.metadata.labels.get(USER_LABEL, "")),
        Column("GPUs", lambda job, now: job.gpus, "count"),
        Column("Step", lambda job, now: _step(job), "count", _step_text),
        Column("ETA", lambda job, now: job.eta_s(now), "age"),
        Column("Exit", lambda job, now: _exit_code(job), "count"),
        Column("GPU-hours", lambda job, now: job.gpu_hours(now), "hours"),
        _at("Started", lambda job: job.status.started_at),
        _at("Ended", lambda job: job.status.finished_at),
    )
}
"""All columns by heading; `-o` selects some."""


def cells(job: ListedJob, now: float, *, with_namespace: bool) -> dict[str, Text]:
    """The text of every column but REASON."""
    meta, phase, status = job.summary.metadata, job.summary.phase, job.status
    found = {heading: Text(column.show(job, now)) for heading, column in COLUMNS.items()}
    for heading, at in (("STARTED", status.started_at), ("ENDED", status.finished_at)):
        found[heading] = Text("" if at is None else format_time(at, now))
    if with_namespace:
        found["JOB"] = Text(f"{meta.namespace or 'default'}/{meta.name}")
    found["QUEUE"] = Text(job_text.truncate(job.summary.queue, _MAX_QUEUE_WIDTH))
    found["PHASE"] = Text(f"{job_text.PHASE_SYMBOLS[phase]} {phase}", style=job_text.PHASE_STYLES[phase])
    return found


def reason_text(job: ListedJob, now: float, shown: Sequence[str] = ()) -> Text:
    """Why a job waits or has ended, or how a running one does, without what columns `shown` already say."""
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
        text.append(job_text.reason_sentence(status))
        failure = None if of_training is None else of_training.last_failure
        line = job_text.truncate(last_log_line(failure), _MAX_LAST_LINE)
        if line and not failure_cause(failure):
            text.append(f"; {line}", style="dim")
    elif is_array(job.document):
        text.append(job_text.array_summary(job.document))
    elif status.phase in ("Running", "Admitted"):
        heartbeat = {} if job.heartbeat is None else dict(job.heartbeat)
        for title, fields in (("STEP", ("step", "steps")), ("ETA", ("eta_s", "step_time_s"))):
            if title in shown:
                heartbeat = {name: value for name, value in heartbeat.items() if name not in fields}
        if line := progress_line(heartbeat):
            text.append(f"{line}  ")
        text.append(", ".join(sorted({share.node for role in status.placement for share in role.nodes})), style="dim")
    evicted = last_eviction(status)
    if evicted is not None:
        text.append(
            f"  {evicted.reason} {format_duration(max(0.0, now - evicted.last_transition_time))} ago", style="dim"
        )
    if status.restarts:
        text.append(f"  restarts {status.restarts}", style="dim")
    return text
