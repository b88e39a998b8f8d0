"""Executes runs as queued jobs, and reads their records as they come.

A job runs in one pod, one program after the other, so that both sides use the same node and devices. Its records are
lines of its log, which every cluster can follow; what a job did not finish is given to the next one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from muster.api.spec import API_VERSION, TrainingJob
from muster.api.yaml_input import parse_objects
from muster.bench.results import JobRef, ResultsFile, RunKey, parse_record, program_name
from muster.bench.suite import Benchmark, Suite
from muster.client import ClusterClient, LogOptions
from muster.errors import MusterError, NotFound
from muster.workload.conditions import find_condition, has_terminated

RUNNER_MODULE = "muster_components.bench"
ROLE = "bench"
NOT_STARTED = "not started"
"""How the runner's error of a run begins that followed a failed one of its benchmark."""
_POLL_S = 0.2
_GRACE_S = 10


@dataclass(frozen=True, slots=True)
class Side:
    """One of the programs that are compared: a label, the folder of its sources (None: the pod's), and what differs."""

    label: str
    folder: str | None
    env: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class WantedRun:
    """A run that a job is to execute."""

    benchmark: Benchmark
    side: Side
    repetition: int
    traced: bool = False

    @property
    def key(self) -> RunKey:
        return RunKey(program_name(self.benchmark.name, self.side.label), self.repetition, self.traced)


class JobFailed(MusterError):
    """A job ended before all of its runs had a record."""

    reason = "BenchmarkJobFailed"


def plan_text(runs: Sequence[WantedRun]) -> str:
    """The plan of a job as the runner's argument, without the character `$`, which Kubernetes would expand."""
    programs: dict[str, int] = {}
    entries = []
    for run in runs:
        if run.key.program not in programs:
            programs[run.key.program] = len(programs)
            entries.append(_program(run))
    order = [[programs[run.key.program], run.repetition, run.traced] for run in runs]
    return json.dumps({"programs": entries, "runs": order}).replace("$", "\\u0024")


def _program(run: WantedRun) -> dict[str, object]:
    benchmark, side = run.benchmark, run.side
    return {
        "name": run.key.program,
        "benchmark": benchmark.name,
        "command": list(side.command or benchmark.command),
        "env": {**benchmark.env, **dict(side.env)},
        "folder": side.folder,
        "setup": list(benchmark.setup),
        "timeout_s": benchmark.timeout_s,
        "trace_steps": benchmark.trace_steps,
    }


def build_job(suite: Suite, name: str, namespace: str, runs: Sequence[WantedRun]) -> TrainingJob:
    """The job that executes the runs. Raises `InvalidSpec`."""
    container = {
        "name": ROLE,
        "image": suite.spec.image,
        "command": ["python", "-m", RUNNER_MODULE, plan_text(runs)],
        "resources": {"limits": dict(suite.spec.resources)},
    }
    pod = {
        "containers": [{key: value for key, value in container.items() if value}],
        "terminationGracePeriodSeconds": _GRACE_S,
    }
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "queue": suite.spec.queue,
            "priority": suite.spec.priority,
            "failurePolicy": {"rules": [{"onExitCodes": [2], "action": "FailJob"}]},
            "roles": [{"name": ROLE, "template": {"spec": pod}}],
        },
    }
    job = parse_objects(json.dumps(manifest), "suite", allow_unknown_pod_fields=True)[0].item
    assert isinstance(job, TrainingJob)
    return job


@dataclass(frozen=True, slots=True)
class Session:
    """The results file of a command, and the cluster that executes what is missing in it.

    `note` prints a line for people; `submit` submits a job and returns it.
    """

    client: ClusterClient
    namespace: str
    suite: Suite
    results: ResultsFile
    note: Callable[[str], None]

    def execute(self, runs: Sequence[WantedRun]) -> None:
        """Return once each run has a record. First collects those of a job that an interrupted command submitted.

        Raises `JobFailed` if a job ends without all records, `Refused` and other errors of the submission.
        """
        keys = [run.key for run in runs]
        if self.results.jobs and self.results.missing(keys):
            self._collect(self.results.jobs[-1], resumed=True)
        missing = set(self.results.missing(keys))
        if not missing:
            return
        wanted = [run for run in runs if run.key in missing]
        job = build_job(self.suite, f"bench-{self.suite.name}-{secrets.token_hex(4)}", self.namespace, wanted)
        accepted = self.client.submit_all([job])[0]
        ref = JobRef(accepted.metadata.name, accepted.metadata.namespace or self.namespace)
        self.results.add_job(ref)
        self.note(f"job {ref.namespace}/{ref.name}: {len(wanted)} runs in queue {self.suite.spec.queue}")
        self._collect(ref, resumed=False)
        if left := self.results.missing(keys):
            raise JobFailed(
                f"job {ref.namespace}/{ref.name} ended as {self._phase(ref)} without {len(left)} of {len(wanted)} "
                f"runs; see: muster describe {ref.namespace}/{ref.name}"
            )

    def _phase(self, ref: JobRef) -> str:
        try:
            return self.client.job(ref.name, ref.namespace).status.phase
        except NotFound:
            return "deleted"

    def _collect(self, ref: JobRef, *, resumed: bool) -> None:
        """Append the records of a job until it has ended; one that was deleted has none."""
        try:
            for line in self._lines(ref):
                record = parse_record(line)
                if record is None:
                    continue
                if record.folder:  # in a cluster the folder cannot be reached
                    folder = self.client.run_dir(ref.name, ref.namespace)
                    record = msgspec.structs.replace(
                        record, folder="" if folder is None else str(folder / record.folder)
                    )
                if self.results.add_run(record) and record.error and not record.error.startswith(NOT_STARTED):
                    self.note(f"{record.program}, run {record.repetition}: {record.error}")
        except NotFound as error:
            if not resumed or error.reason != NotFound.reason:
                raise

    def _lines(self, ref: JobRef) -> Iterator[str]:
        """The lines of all attempts whose logs exist, in order."""
        attempt = 0
        while self._has_started(ref, attempt):
            options = LogOptions(attempt=attempt, follow=True)
            try:
                yield from self.client.log_lines(ref.name, ref.namespace, ROLE, 0, options)
            except NotFound as error:
                if error.reason != "LogUnavailable":  # Kubernetes deletes the logs of an attempt with its pods
                    raise
            attempt += 1

    def _has_started(self, ref: JobRef, attempt: int) -> bool:
        """Wait until the attempt runs, or the job has ended without it. Prints why the job waits."""
        shown = ""
        while True:
            for job in self.client.watch(ref.name, ref.namespace):
                status = job.status
                if status.phase == "Running" and status.attempt >= attempt:
                    return True
                if has_terminated(status):
                    newest = self.client.log_attempts(ref.name, ref.namespace).get((ROLE, 0), status.attempt)
                    return newest >= attempt
                waiting = find_condition(status, "Admitted")
                reason = waiting.message if waiting is not None and status.phase == "Pending" else ""
                if reason and reason != shown:
                    shown = reason
                    self.note(f"job {ref.namespace}/{ref.name} waits: {reason}")
            time.sleep(_POLL_S)
