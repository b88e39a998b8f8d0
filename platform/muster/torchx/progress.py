"""Status messages of `torchx run --wait` without `--log`, with periodic progress lines instead of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.lifecycle import has_terminated
from muster.progress import ProgressLines, current_heartbeat
from muster.spec import TrainingJob
from muster.torchx.status_message import status_message

if TYPE_CHECKING:
    from muster.torchx.scheduler import JobClient

PROGRESS_INTERVAL_S = 10.0


@dataclass(slots=True)
class _JobProgress:
    """What was reported of one job."""

    progress_lines: ProgressLines = field(default_factory=lambda: ProgressLines(PROGRESS_INTERVAL_S))
    started_attempt: int | None = None  # the last attempt reported as running
    ended: bool = False


@dataclass(slots=True)
class ProgressReporter:
    """Reports the progress of jobs. `clock` returns Unix seconds, as in heartbeats."""

    clock: Callable[[], float] = time.time
    _progress_by_app: dict[str, _JobProgress] = field(default_factory=dict)

    def next_lines(self, app: str, job: TrainingJob, client: JobClient) -> Iterator[str]:
        """Lines that were not reported yet, from the job's start on; `StatusReporter` reports what precedes it."""
        progress, status = self._progress_by_app.setdefault(app, _JobProgress()), job.status
        name, namespace = job.metadata.name, job.metadata.namespace or "default"
        if status.phase == "Running":
            if progress.started_attempt != status.attempt:
                progress.started_attempt = status.attempt
                yield status_message(job)
            line = progress.progress_lines.next_line(
                current_heartbeat(client.heartbeats(name, namespace), status.attempt), self.clock()
            )
            if line is not None:
                yield line
        elif has_terminated(status) and not progress.ended:
            progress.ended = True
            run_dir = client.run_dir(name, namespace)
            location = "" if run_dir is None or status.started_at is None else f"; run folder {run_dir}"
            yield f"{status.phase.lower()}: {status_message(job)}{location}"
