"""Follows a log with the job's status: why it waits, the log of every attempt, its result and its report."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.errors import ClusterError, NotFound
from muster.kubernetes.run_location import report_command
from muster.log_options import LogOptions
from muster.spec import TERMINAL_PHASES, TrainingJob
from muster.torchx.status_message import change_key, status_message

if TYPE_CHECKING:
    from muster.torchx.scheduler import JobClient

REPORT_TIMEOUT_S = 900.0
"""The time that the daemon allows for building a report."""
_POLL_S = 0.3
_PHASES_WITH_LOG = ("Running", "Terminating", *TERMINAL_PHASES)


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
    client: JobClient, pod: FollowedPod, first_attempt: int | None, app_id: str, reporter: StatusReporter
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


def _end_lines(client: JobClient, pod: FollowedPod, job: TrainingJob) -> Iterator[str]:
    """The job's result, and the location of its report or run folder."""
    yield f"muster: {job.status.phase.lower()}: {status_message(job)}"
    run_dir = client.run_dir(pod.name, pod.namespace)
    if run_dir is None:  # inside a cluster
        command = report_command(job, getattr(client, "context_name", ""))
        if command is not None:
            yield f"muster: to build the report: {command}"
        return
    if job.spec.trace is None or job.status.started_at is None:
        yield f"muster: run folder {run_dir}"
        return
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while job.status.traces is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        job = client.job(pod.name, pod.namespace)
    if job.status.traces is not None and job.status.traces.report:
        yield f"muster: report {job.status.traces.report}"
    else:
        yield f"muster: the report could not be built; see {run_dir / 'report' / 'build.log'}"
