"""Follows a job from the queue to its end: a sentence for each state, the log of a pod, the location of its report.

For clients that print to a log: TorchX and Kubeflow Pipelines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from muster.api.spec import TERMINAL_PHASES, TrainingJob
from muster.client import ClusterClient, LogOptions
from muster.cluster_client.jobs import report_command
from muster.errors import ClusterError, InvalidTrace, NotFound
from muster.text import sanitize
from muster.workload.conditions import ADMITTED, CANCELLED, COMPLETE, FAILED, PODS_READY, find_condition

REPORT_TIMEOUT_S = 900.0
"""The time that the daemon allows for building a report."""
_POLL_S = 0.3
_PHASES_WITH_LOG = ("Running", "Terminating", *TERMINAL_PHASES)


def status_message(job: TrainingJob) -> str:
    """One sentence: queue position and reason while it waits, nodes while it runs, result at the end."""
    status = job.status
    if status.phase == "Pending":
        return f"waits in queue {job.spec.queue}{_queue_position(job)}{_admission_message(job)}{_estimated_start(job)}"
    if status.phase == "Suspended":
        return f"suspended; to resume it: muster resume {job.metadata.name}"
    if status.phase == "Admitted":
        return _condition_message(job, PODS_READY) or f"admitted to {_node_names(job)}; its pods are starting"
    if status.phase == "Running":
        again = f", attempt {status.attempt}" if status.attempt else ""
        return f"runs on {_node_names(job)}{again}"
    if status.phase == "Succeeded":
        return _condition_message(job, COMPLETE) or "succeeded"
    if status.phase == "Terminating":
        return f"stopping: {_condition_message(job, CANCELLED) or 'cancelled'}"
    if status.phase == "Cancelled":
        return _condition_message(job, CANCELLED) or "cancelled"
    return _condition_message(job, FAILED) or "failed"


def change_key(job: TrainingJob) -> tuple[object, ...] | None:
    """A message is reported once per value of this key: queue position, reason, start and restart, without the
    estimate, which changes with every cycle. None: nothing to report, as the job has no reason yet or is running."""
    status = job.status
    if status.phase in ("Pending", "Suspended") and (reason := _admission_message(job)):
        return (status.phase, status.attempt, status.queue_position, reason)
    if status.phase == "Admitted":
        return (status.phase, status.attempt, status_message(job))
    return None


def _queue_position(job: TrainingJob) -> str:
    position = job.status.queue_position
    if position is None:
        return ""
    return f", position {position}"


def _admission_message(job: TrainingJob) -> str:
    message = _condition_message(job, ADMITTED)
    return f": {message}" if message else ""


def _estimated_start(job: TrainingJob) -> str:
    start = job.status.estimated_start
    if start is None:
        return ""
    return f"; expected to start at {datetime.fromtimestamp(start):%H:%M:%S}"  # noqa: DTZ006  (the reader's own clock)


def _node_names(job: TrainingJob) -> str:
    names = sorted({share.node for part in job.status.placement for share in part.nodes})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more nodes" if len(names) > 4 else "")


def _condition_message(job: TrainingJob, kind: str) -> str:
    condition = find_condition(job.status, kind)
    return sanitize(condition.message) if condition is not None else ""


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """A pod whose log is followed. `is_primary`: pod 0 of the first role, after whose log the job's end is printed."""

    name: str
    namespace: str
    role: str
    index: int
    is_primary: bool


@dataclass(slots=True)
class StatusReporter:
    """Reports each status of a job once, although `torchx run --log` follows it in several threads."""

    _last_reported: dict[str, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_message(self, app: str, job: TrainingJob) -> str | None:
        """The status message if it was not reported yet, else None."""
        key = change_key(job)
        with self._lock:
            if key is None or self._last_reported.get(app) == key:
                return None
            self._last_reported[app] = key
        return status_message(job)


def follow(
    client: ClusterClient, pod: FollowedPod, first_attempt: int | None, app_id: str, reporter: StatusReporter
) -> Iterator[str]:
    """Log lines of every attempt from `first_attempt` (None: the current one) to the job's end, and status messages."""
    attempt = first_attempt
    job: TrainingJob | None = None
    try:
        for job in client.watch(pod.name, pod.namespace):
            sentence = reporter.next_message(app_id, job)
            if sentence is not None:
                yield f"muster: {sentence}"
            current = job.status.attempt
            attempt = current if attempt is None else attempt
            while attempt < current or (attempt == current and job.status.phase in _PHASES_WITH_LOG):
                options = LogOptions(attempt=attempt, follow=attempt == current)
                yield from client.log_lines(pod.name, pod.namespace, pod.role, pod.index, options)
                attempt += 1
        if job is not None and pod.is_primary:
            yield from _end_lines(client, pod, job)
    except NotFound:
        yield "muster: the job was deleted"
    except ClusterError as error:
        yield f"muster: the log cannot be followed any more: {error}"


def _end_lines(client: ClusterClient, pod: FollowedPod, job: TrainingJob) -> Iterator[str]:
    """The job's result, and its report or run folder."""
    yield f"muster: {job.status.phase.lower()}: {status_message(job)}"
    run_dir = client.run_dir(pod.name, pod.namespace)
    if run_dir is None:  # inside a cluster
        command = report_command(job, getattr(client, "context_name", ""))
        if command is not None:
            yield f"muster: to build the report: {command}"
    elif has_report(job):
        for line in report_lines(client, job, run_dir):
            yield f"muster: {line}"
    else:
        yield f"muster: run folder {run_dir}"


def has_report(job: TrainingJob) -> bool:
    """Whether this host's daemon builds a report when the job has ended."""
    return job.spec.trace is not None and job.status.started_at is not None


def report_lines(client: ClusterClient, job: TrainingJob, run_dir: Path) -> Iterator[str]:
    """The summary, the findings and the location of the report, once it is built; or why there is none."""
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while job.status.traces is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        try:
            job = client.job(job.metadata.name, job.metadata.namespace or "default")
        except (
            NotFound,
            ClusterError,
        ) as error:  # the job has ended: that its report is not known changes nothing of its result
            yield f"the report is not known: {error}"
            return
    if job.status.traces is None or not job.status.traces.report:
        yield f"the report could not be built; see {run_dir / 'report' / 'build.log'}"
        return
    # Imported here: numpy takes a while to import, and most commands need no report.
    from muster.tracing.report import load, summary_parts

    with suppress(InvalidTrace, OSError):  # the page is on this host, but users may delete or change it
        report = load(Path(job.status.traces.report))
        yield "  ".join(summary_parts(report))
        yield report.headline
        yield from (sentence for sentence in report.findings if sentence != report.headline)
    yield f"report {job.status.traces.report}"
