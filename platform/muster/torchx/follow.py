"""A log that is followed tells the whole story: why the job waits, what its pods write attempt after attempt, how it
ended, and where its report lies."""

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
"""As long as the daemon may take to build a report."""
_POLL_S = 0.3
_PHASES_WITH_LOG = ("Running", "Terminating", *TERMINAL_PHASES)


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """Whose log is read. `speaks` for the job: pod 0 of its first role, which alone tells how the job ended."""

    name: str
    namespace: str
    role: str
    index: int
    is_primary: bool


@dataclass(slots=True)
class StatusReporter:
    """What was told of each job already: `torchx run --log` asks from several threads at once."""

    _last_reported: dict[str, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_message(self, app: str, job: TrainingJob) -> str | None:
        """A sentence that nobody was told yet, or None."""
        fresh = change_key(job)
        with self._lock:
            if fresh is None or self._last_reported.get(app) == fresh:
                return None
            self._last_reported[app] = fresh
        return status_message(job)


def follow(
    client: JobClient, pod: FollowedPod, first_attempt: int | None, app_id: str, reporter: StatusReporter
) -> Iterator[str]:
    """Lines of every attempt from `first_attempt` (None: the one at hand) to the job's end, with the story between."""
    attempt = first_attempt
    job: TrainingJob | None = None
    try:
        for job in client.watch(pod.name, pod.namespace):
            sentence = reporter.next_message(app_id, job)
            if sentence is not None:
                yield f"muster: {sentence}"
            at_hand = job.status.attempt
            attempt = at_hand if attempt is None else attempt
            while attempt < at_hand or (attempt == at_hand and job.status.phase in _PHASES_WITH_LOG):
                options = LogOptions(attempt=attempt, follow=attempt == at_hand)
                yield from client.log_lines(pod.name, pod.namespace, pod.role, pod.index, options)
                attempt += 1
        if job is not None and pod.is_primary:
            yield from _end_lines(client, pod, job)
    except NotFound:
        yield "muster: the job was deleted"
    except ClusterError as error:
        yield f"muster: the log cannot be followed any more: {error}"


def _end_lines(client: JobClient, pod: FollowedPod, job: TrainingJob) -> Iterator[str]:
    """How the job ended; last of all, where to look."""
    yield f"muster: {job.status.phase.lower()}: {status_message(job)}"
    run_dir = client.run_dir(pod.name, pod.namespace)
    if run_dir is None:  # inside a cluster
        command = report_command(job, getattr(client, "context_name", ""))
        if command is not None:
            yield f"muster: for the report: {command}"
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
