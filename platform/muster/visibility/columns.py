"""The columns of jobs, queues, nodes, preemptions and usage: one specification for the tables of `kubectl get`, of
pages and of `muster`, each of which shows some of them in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.text import format_duration, format_hours, hours_unit
from muster.visibility.types import (
    JobCurve,
    JobSummary,
    NodeSummary,
    PendingJob,
    Preemption,
    QueueSummary,
    UsageSummary,
)

Form = Literal["text", "count", "flag", "age", "run time", "time", "hours", "job", "queue", "phase", "message"]
"""How a value is shown. `age` and `run time` are seconds until now, `time` is Unix seconds; `job`, `queue`, `phase` and
`message` are text that pages show with links and colours."""
_RIGHT = ("count", "age", "run time", "hours")


@dataclass(frozen=True, slots=True)
class Column:
    """`value`: of an item at a time, to sort by; None: not known. `text`: how an item shows it, if not as its form.
    `short`: the title of a narrow column, in which `muster` prints it."""

    title: str
    value: Callable[[Any, float], Any]
    form: Form = "text"
    text: Callable[[Any], str] | None = None
    short: str = ""

    @property
    def heading(self) -> str:
        """The title that `muster` prints, and that `-o` names."""
        return (self.short or self.title.replace(" ", "")).upper()

    @property
    def right(self) -> bool:
        """Whether values are aligned at their ends."""
        return self.form in _RIGHT

    def show(self, item: Any, now: float) -> str:
        """The text of an item."""
        if self.text is not None:
            return self.text(item)
        value = self.value(item, now)
        if value is None:
            return ""
        if self.form in ("age", "run time"):
            return format_duration(max(0.0, value))
        if self.form == "time":
            return f"in {format_duration(value - now)}" if value >= now else f"{format_duration(now - value)} ago"
        return format_hours(value) if self.form == "hours" else str(value)


def pods_text(job: JobSummary) -> str:
    """Ready and requested pods, `2/4`; of a job without pods what it requests, `2-4`; empty if that is not known."""
    if job.pods_wanted and job.phase in ("Admitted", "Running"):
        return f"{job.pods_ready}/{max(job.max_pods, job.pods_wanted)}"
    return str(job.max_pods or "") if job.min_pods == job.max_pods else f"{job.min_pods}-{job.max_pods}"


def run_time_s(ran: Any, now: float) -> float | None:
    """Seconds that all attempts of a job ran so far, from its summary or status; None before the first has started."""
    if ran.started_at is None:
        return float(ran.ran_seconds) or None
    end = now if ran.finished_at is None else ran.finished_at
    return float(ran.ran_seconds + max(0.0, end - ran.started_at))


def _age_s(job: JobSummary, now: float) -> float | None:
    since = job.submitted_at or job.metadata.creation_timestamp
    return None if since is None else now - since


def _amounts(item: QueueSummary, column: str) -> str:
    """`RESOURCE=AMOUNT` of all flavors, or `FLAVOR/RESOURCE=AMOUNT` if there are several."""
    several = len(item.resources) > 1
    return ",".join(
        f"{f'{entry.flavor}/' if several else ''}{name}={amount}"
        for entry in item.resources
        for name, amount in getattr(entry, column).items()
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _last_loss(item: JobCurve) -> str:
    known = [point.loss for point in item.points if point.loss is not None]
    return f"{known[-1]:.4g}" if known else ""


_NAME = Column("Name", lambda item, now: item.metadata.name)
_JOB = Column("Job", lambda item, now: item.metadata.name, "job")
_QUEUE = Column("Queue", lambda item, now: item.queue, "queue")
_PRIORITY = Column("Priority", lambda item, now: item.priority, "count", lambda item: _or_dash(item.priority), "PRIO")
_POSITION = Column("Position", lambda item, now: item.position, "count", lambda item: str(item.position or ""))
_START = Column("Estimated start", lambda item, now: item.estimated_start, "time", short="STARTS")
_REASON = Column("Reason", lambda item, now: item.reason, "message")
_MESSAGE = Column("Message", lambda item, now: item.message)
_FLAVOR = Column("Flavor", lambda item, now: item.flavor or "")

JOB_COLUMNS = (
    _JOB,
    Column("Namespace", lambda job, now: job.metadata.namespace or "default"),
    Column("Kind", lambda job, now: job.object_kind),
    _QUEUE,
    _PRIORITY,
    Column("Phase", lambda job, now: job.phase, "phase"),
    Column("Pods", lambda job, now: job.pods_wanted or None, "count", pods_text),
    _POSITION,
    _START,
    Column("Age", _age_s, "age"),
    Column("Run time", run_time_s, "run time"),
    _REASON,
)
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    kind.__name__: {column.title: column for column in (_NAME, *columns)}
    for kind, columns in {
        JobSummary: JOB_COLUMNS,
        PendingJob: (_POSITION, _QUEUE, _JOB, _START, _PRIORITY, _REASON, _MESSAGE),
        Preemption: (
            Column("Time", lambda item, now: item.at, "time"),
            _JOB,
            _QUEUE,
            Column("How", lambda item, now: "shrunk" if item.resized else "evicted"),
            _REASON,
            _MESSAGE,
        ),
        JobCurve: (
            Column("Step", lambda item, now: str(item.points[-1].step) if item.points else None),
            Column("Loss", lambda item, now: _last_loss(item)),
        ),
        QueueSummary: (
            Column("Parent", lambda item, now: item.parent or ""),
            Column("Active", lambda item, now: item.active, "flag"),
            Column("Pending", lambda item, now: item.pending, "count"),
            Column("Admitted", lambda item, now: item.admitted, "count"),
            Column("Used", lambda item, now: _amounts(item, "used")),
            Column("Guaranteed", lambda item, now: _amounts(item, "guaranteed")),
        ),
        NodeSummary: (
            _FLAVOR,
            Column("Ready", lambda item, now: item.ready, "flag"),
            Column("Pods", lambda item, now: item.pod_count, "count"),
            Column("Used", lambda item, now: ",".join(f"{name}={amount}" for name, amount in item.used.items())),
        ),
        UsageSummary: (
            _FLAVOR,
            Column("Used", lambda item, now: item.hours, "hours"),
            Column("Unit", lambda item, now: hours_unit(item.resource)),
            Column("Resource", lambda item, now: item.resource),
        ),
    }.items()
}
"""By kind and title."""


def columns_of(kind: str, *titles: str) -> list[Column]:
    """These columns of a kind, in this order."""
    return [COLUMNS[kind][title] for title in titles]
