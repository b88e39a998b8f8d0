"""`torchx run --wait` without `--log` tells the same story, and now and then how far the job is, instead of its log."""

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
    """What was told of one job."""

    progress_lines: ProgressLines = field(default_factory=lambda: ProgressLines(PROGRESS_INTERVAL_S))
    started_attempt: int | None = None  # the attempt of which it was told that it runs
    ended: bool = False


@dataclass(slots=True)
class ProgressReporter:
    """What was told of the jobs that somebody waits for. `clock` gives Unix seconds, as beats do."""

    clock: Callable[[], float] = time.time
    _progress_by_app: dict[str, _JobProgress] = field(default_factory=dict)

    def next_lines(self, app: str, job: TrainingJob, client: JobClient) -> Iterator[str]:
        """Sentences from the start on that nobody was told yet; what comes before it, everybody is told."""
        message, status = self._progress_by_app.setdefault(app, _JobProgress()), job.status
        name, namespace = job.metadata.name, job.metadata.namespace or "default"
        if status.phase == "Running":
            if message.started_attempt != status.attempt:
                message.started_attempt = status.attempt
                yield status_message(job)
            line = message.progress_lines.next_line(
                current_heartbeat(client.heartbeats(name, namespace), status.attempt), self.clock()
            )
            if line is not None:
                yield line
        elif has_terminated(status) and not message.ended:
            message.ended = True
            run_dir = client.run_dir(name, namespace)
            where = "" if run_dir is None or status.started_at is None else f"; run folder {run_dir}"
            yield f"{status.phase.lower()}: {status_message(job)}{where}"
