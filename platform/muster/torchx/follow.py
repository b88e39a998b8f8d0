"""A log that is followed tells the whole story: why the job waits, what its pods write attempt after attempt, how it
ended, and where its report lies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.errors import ClusterError, NotFound
from muster.excerpt import Excerpt
from muster.kubernetes.kept import report_command
from muster.spec import ENDED_PHASES, TrainingJob
from muster.torchx.story import doing, news

if TYPE_CHECKING:
    from muster.torchx.scheduler import JobClient

REPORT_PATIENCE_S = 900.0
"""As long as the daemon may take to build a report."""
_POLL_S = 0.3
_HAS_LOG = ("Running", "Terminating", *ENDED_PHASES)


@dataclass(frozen=True, slots=True)
class Pod:
    """Whose log is read. `speaks` for the job: pod 0 of its first role, which alone tells how the job ended."""

    name: str
    namespace: str
    role: str
    index: int
    speaks: bool


@dataclass(slots=True)
class Told:
    """What was told of each job already: `torchx run --log` asks from several threads at once."""

    _last: dict[str, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, app: str, job: TrainingJob) -> str | None:
        """A sentence that nobody was told yet, or None."""
        fresh = news(job)
        with self._lock:
            if fresh is None or self._last.get(app) == fresh:
                return None
            self._last[app] = fresh
        return doing(job)


def follow(client: JobClient, pod: Pod, first_attempt: int | None, app: str, told: Told) -> Iterator[str]:
    """Lines of every attempt from `first_attempt` (None: the one at hand) to the job's end, with the story between."""
    attempt = first_attempt
    job: TrainingJob | None = None
    try:
        for job in client.watch(pod.name, pod.namespace):
            sentence = told.tell(app, job)
            if sentence is not None:
                yield f"muster: {sentence}"
            at_hand = job.status.attempt
            attempt = at_hand if attempt is None else attempt
            while attempt < at_hand or (attempt == at_hand and job.status.phase in _HAS_LOG):
                excerpt = Excerpt(attempt=attempt, follow=attempt == at_hand)
                yield from client.log_lines(pod.name, pod.namespace, pod.role, pod.index, excerpt)
                attempt += 1
        if job is not None and pod.speaks:
            yield from _ending(client, pod, job)
    except NotFound:
        yield "muster: the job was deleted"
    except ClusterError as error:
        yield f"muster: the log cannot be followed any more: {error}"


def _ending(client: JobClient, pod: Pod, job: TrainingJob) -> Iterator[str]:
    """How the job ended; last of all, where to look."""
    yield f"muster: {job.status.phase.lower()}: {doing(job)}"
    run_dir = client.run_dir(pod.name, pod.namespace)
    if run_dir is None:  # inside a cluster
        command = report_command(job, getattr(client, "context", ""))
        if command is not None:
            yield f"muster: for the report: {command}"
        return
    if job.spec.trace is None or job.status.started_at is None:
        yield f"muster: run folder {run_dir}"
        return
    patience = time.monotonic() + REPORT_PATIENCE_S
    while job.status.traces is None and time.monotonic() < patience:
        time.sleep(_POLL_S)
        job = client.job(pod.name, pod.namespace)
    if job.status.traces is not None and job.status.traces.report:
        yield f"muster: report {job.status.traces.report}"
    else:
        yield f"muster: the report could not be built; see {run_dir / 'report' / 'build.log'}"
