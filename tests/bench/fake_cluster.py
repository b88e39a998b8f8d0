"""A cluster in which every program takes the times that a test says; it implements what a session calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions
from muster.errors import NotFound

TimesOf = Callable[[dict[str, Any], int], list[float] | str]
"""(program of the plan, repetition) -> the wall times of the iterations, or an error."""


@dataclass
class FakeCluster:
    """`attempts` are how many runs each attempt of a job does before it is killed; the last one does all that are left.

    As on Kubernetes without a durable run folder, an attempt begins with the first run. With `deletes_logs`, as there,
    only the current attempt has a log.
    """

    times_of: TimesOf
    attempts: Sequence[int] = ()
    folder: Path | None = None
    submitted: list[TrainingJob] = field(default_factory=list)
    statuses: list[TrainingJobStatus] = field(default_factory=list)  # before the job runs
    end: str = "Succeeded"
    deletes_logs: bool = False
    attempt: int = 0  # that the last status had

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        self.submitted += jobs
        return list(jobs)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        found = next((job for job in self.submitted if job.metadata.name == name), None)
        if found is None:
            raise NotFound(f"job {name} does not exist")
        return self._with(found, self.end, len(self.attempts))

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        job = self.job(name, namespace)
        while self.statuses:
            self.attempt = self.statuses[0].attempt
            yield job.model_copy(update={"status": self.statuses.pop(0)})
        self.attempt = len(self.attempts)
        yield self._with(job, self.end, self.attempt)

    def log_attempts(self, name: str, namespace: str = "default") -> Mapping[tuple[str, int], int]:
        return {} if self.deletes_logs else {("bench", 0): len(self.attempts)}

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        return self.folder

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        plan = json.loads(self.job(name, namespace).spec.roles[0].template.spec.containers[0].command[3])
        runs = plan["runs"]
        assert options.attempt is not None
        if self.deletes_logs and options.attempt < self.attempt:
            raise NotFound("its pods and logs are deleted", field="attempt", reason="LogUnavailable")
        done = [*self.attempts, len(runs)][options.attempt]
        yield "output of something else"
        for number, repetition, traced in runs[:done]:
            program = plan["programs"][number]
            times = self.times_of(program, repetition)
            record = {"program": program["name"], "repetition": repetition, "traced": traced}
            record |= {"error": times} if isinstance(times, str) else {"wall_s": times}
            yield json.dumps({"muster_bench": record | ({"folder": f"bench/{number}"} if traced else {})})

    def _with(self, job: TrainingJob, phase: str, attempt: int) -> TrainingJob:
        at = "2026-01-01T00:00:00Z"
        complete = {"type": "Complete", "status": "True", "reason": "X", "lastTransitionTime": at}
        status = {"phase": phase, "attempt": attempt, "finishedAt": at, "conditions": [complete]}
        return job.model_copy(update={"status": TrainingJobStatus.model_validate(status)})
