"""`torchx run --wait` without `--log` tells the same story, and now and then how far the job is, instead of its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.lifecycle import has_ended
from muster.progress import Lines, present
from muster.spec import TrainingJob
from muster.torchx.story import doing

if TYPE_CHECKING:
    from muster.torchx.scheduler import JobClient

PROGRESS_EVERY_S = 10.0


@dataclass(slots=True)
class _Job:
    """What was told of one job."""

    lines: Lines = field(default_factory=lambda: Lines(PROGRESS_EVERY_S))
    started: int | None = None  # the attempt of which it was told that it runs
    ended: bool = False


@dataclass(slots=True)
class Waiting:
    """What was told of the jobs that somebody waits for. `clock` gives Unix seconds, as beats do."""

    clock: Callable[[], float] = time.time
    _jobs: dict[str, _Job] = field(default_factory=dict)

    def news(self, app: str, job: TrainingJob, client: JobClient) -> Iterator[str]:
        """Sentences from the start on that nobody was told yet; what comes before it, everybody is told."""
        told, status = self._jobs.setdefault(app, _Job()), job.status
        name, namespace = job.metadata.name, job.metadata.namespace or "default"
        if status.phase == "Running":
            if told.started != status.attempt:
                told.started = status.attempt
                yield doing(job)
            line = told.lines.due(present(client.beats(name, namespace), status.attempt), self.clock())
            if line is not None:
                yield line
        elif has_ended(status) and not told.ended:
            told.ended = True
            run_dir = client.run_dir(name, namespace)
            where = "" if run_dir is None or status.started_at is None else f"; run folder {run_dir}"
            yield f"{status.phase.lower()}: {doing(job)}{where}"
