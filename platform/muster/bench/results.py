"""The results of a benchmark session: a file of JSON lines to which every finished run is appended.

The first line is the plan, so that a file is continued only by the command that began it; then jobs and runs as they
come. Whatever process is killed, the file has all runs that were read, and the run folder of the job has the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from muster.bench.suite import Benchmark, Metric, is_time
from muster.errors import InvalidSpec, Refused

RECORD = "muster_bench"  # the key of a record in the runner's output: muster_components.bench.runner
VERSION = 1
MAX_BYTES = 1 << 30


class RunRecord(msgspec.Struct, frozen=True):
    """One run of a program, as the runner records it. Times are in seconds; `error` is empty if it succeeded.

    `folder` has the traces of a traced run on this host."""

    program: str
    repetition: int
    traced: bool = False
    wall_s: list[float] = []
    cpu_s: list[float] = []
    total_s: float = 0.0
    total_cpu_s: float = 0.0
    error: str = ""
    folder: str = ""
    at: float = 0.0

    @property
    def key(self) -> RunKey:
        return RunKey(self.program, self.repetition, self.traced)

    def value(self, metric: Metric, warmup: int, quantile: float = 0.5) -> float | None:
        """The run's value of a metric; None if it was not recorded. Raises `InvalidSpec` if the warm-up is all."""
        if metric == "totalCpu":
            return self.total_cpu_s if is_time(self.total_cpu_s) else None
        times = self.wall_s if metric == "wall" else self.cpu_s
        if not times:
            return None
        if len(times) <= warmup:
            message = f"warmup: must be below the number of iterations of {self.program}, {len(times)}; got {warmup}"
            raise InvalidSpec(message, field="warmup")
        return float(np.quantile(times[warmup:], quantile))


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Names a run in a session."""

    program: str
    repetition: int
    traced: bool = False


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job that was submitted for a session."""

    name: str
    namespace: str


def program_name(benchmark: str, side: str) -> str:
    """The name of the program that runs a benchmark on one side."""
    return f"{benchmark}@{side}"


def parse_record(line: str) -> RunRecord | None:
    """The record in a line of the runner's output; None for other output."""
    if not line.startswith('{"' + RECORD):
        return None
    try:
        return msgspec.json.decode(line.encode(), type=dict[str, RunRecord])[RECORD]
    except (msgspec.MsgspecError, KeyError):
        return None


class ResultsFile:
    """The file of a session, open for appending."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        """Create the file, or continue the one that has the same plan. Raises `Refused` for one with another plan,
        `InvalidSpec` for another kind of file, OSError."""
        self.path = path
        self.runs: dict[RunKey, RunRecord] = {}
        self.jobs: list[JobRef] = []
        plan = json.loads(json.dumps(plan))  # as it is read: with lists for tuples
        existing = path.stat().st_size if path.exists() else 0
        if existing:
            found, self.runs, self.jobs = read_results(path)
            if found != plan:
                changed = sorted(key for key in {*found, *plan} if found.get(key) != plan.get(key))
                raise Refused(
                    f"{path} has results of another comparison (different: {', '.join(changed)}); "
                    "give another file with --out, or remove it",
                    field="--out",
                    reason="DifferentPlan",
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if existing and not path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # a kill cut the last line off
        if not existing:
            self._append({"plan": plan, "version": VERSION})

    def add_job(self, job: JobRef) -> None:
        """Note a job before its runs."""
        self.jobs.append(job)
        self._append({"job": asdict(job)})

    def add_run(self, record: RunRecord) -> bool:
        """Note a run; False if it is known already."""
        if record.key in self.runs:
            return False
        self.runs[record.key] = record
        self._append({"run": msgspec.to_builtins(record)})
        return True

    def missing(self, keys: Iterable[RunKey]) -> list[RunKey]:
        return [key for key in keys if key not in self.runs]

    def _append(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_results(path: Path) -> tuple[dict[str, Any], dict[RunKey, RunRecord], list[JobRef]]:
    """(plan, runs, jobs) of a file. A line that was cut off is skipped. Raises `InvalidSpec`, OSError."""
    if path.stat().st_size > MAX_BYTES:
        raise InvalidSpec(f"{path}: must have at most {MAX_BYTES} bytes")
    first, *lines = path.read_bytes().split(b"\n")
    try:
        head = json.loads(first)
        plan: dict[str, Any] = head["plan"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSpec(f"{path}: must be a file of results written by muster bench") from error
    if head.get("version") != VERSION:
        raise InvalidSpec(f"{path}: version must be {VERSION}; got {head.get('version')!r}")
    runs, jobs = {}, []
    for line in lines:
        try:
            entry = json.loads(line)
            if "run" in entry:
                record = msgspec.convert(entry["run"], RunRecord)
                runs[record.key] = record
            elif "job" in entry:
                jobs.append(JobRef(**entry["job"]))
        except (ValueError, TypeError, msgspec.MsgspecError):
            continue
    return plan, runs, jobs


def values_by_repetition(
    runs: Iterable[RunRecord], program: str, metric: Metric, benchmark: Benchmark
) -> dict[int, float]:
    """The metric of each successful run of a program that has it."""
    found = {}
    for run in runs:
        if run.program == program and not run.traced and not run.error:
            value = run.value(metric, benchmark.warmup, benchmark.quantile)
            if value is not None:
                found[run.repetition] = value
    return found
