"""Starts the runs of a plan one after the other, and records each when it has ended.

A record is a line of `bench/results.jsonl` in the run folder and of standard output, from which `muster bench` reads
it. A new attempt of the job (after a preemption, a lost node or a kill) prints the records of earlier attempts and
continues with the first run that has none.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from muster_components.bench.iterations import NoIterations, read_iterations
from muster_components.bench.plan import BenchmarkProgram, Run

RECORD = "muster_bench"
"""The only key of a line that is a record, so that no other output is mistaken for one."""
_MAX_OUTPUT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The result of one run. Times are in seconds.

    `total_s` and `total_cpu_s` are of the whole run, its start included; `total_cpu_s` of all processes that were
    waited for. `error` is empty if the run succeeded, else says why not, with the end of the output. `folder` is the
    run's folder in the run folder of the job, empty if it was removed.
    """

    program: str
    repetition: int
    traced: bool
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    total_cpu_s: float = 0.0
    error: str = ""
    folder: str = ""
    at: float = 0.0


class Runner:
    """Executes runs in `run_dir`; `environ` is that of the programs."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir = run_dir
        self._folder = run_dir / "bench"
        self._results = self._folder / "results.jsonl"
        self._environ = environ
        self._setups: dict[tuple[str | None, tuple[str, ...]], str] = {}  # error of each; empty: it succeeded
        self._child: subprocess.Popen[bytes] | None = None

    def run_all(self, runs: Sequence[Run]) -> int:
        """Execute the runs that have no record yet. Returns the number of failed runs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        done = self._read_records()
        failed: dict[str, str] = {}
        for run in runs:
            record = done.get((run.program.name, run.repetition, run.traced))
            if record is None:
                known = failed.get(run.program.benchmark)
                record = self.execute(run) if known is None else self._skipped(run, known)
                self._append(record)
            self._print(record)
            if record.error and not run.traced:
                failed.setdefault(run.program.benchmark, run.key)
        return len(failed)

    def execute(self, run: Run) -> Record:
        """Execute one run, whether or not it has a record, and remove its folder unless it failed or was traced."""
        program = run.program
        problem = self._set_up(program)
        if problem:
            return Record(program=program.name, repetition=run.repetition, traced=run.traced, error=problem, at=_now())
        folder = self._folder / run.key
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt
        folder.mkdir()
        bench_file = folder / "iterations.jsonl"
        environ = {**self._environ, **program.env, "MUSTER_RUN_DIR": str(folder), "MUSTER_BENCH_FILE": str(bench_file)}
        environ.pop("MUSTER_TRACE_STEPS", None)
        if run.traced:
            environ["MUSTER_TRACE_STEPS"] = program.trace_steps
        log = folder / "output.log"
        began, cpu_before = time.monotonic(), _children_cpu_s()
        error = self._start(program.command, program, environ, log)
        total, cpu = time.monotonic() - began, _children_cpu_s() - cpu_before
        wall_s: list[float] = []
        cpu_s: list[float] = []
        if not error and not run.traced:
            try:
                found = read_iterations(bench_file, folder)
                wall_s, cpu_s = found.wall_s, found.cpu_s
            except (NoIterations, OSError) as problem_read:
                error = f"{problem_read}{_end_of(log)}"
        keep = bool(error) or run.traced
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        return Record(
            program=program.name,
            repetition=run.repetition,
            traced=run.traced,
            wall_s=wall_s,
            cpu_s=cpu_s,
            total_s=total,
            total_cpu_s=cpu,
            error=error,
            folder=f"bench/{run.key}" if keep else "",
            at=_now(),
        )

    def _set_up(self, program: BenchmarkProgram) -> str:
        """Run the setup of a program unless it ran already; returns why it failed, or an empty text."""
        key = (program.folder, tuple(program.setup))
        if program.setup and key not in self._setups:
            log = self._folder / f"setup-{len(self._setups)}.log"
            problem = self._start(program.setup, program, {**self._environ, **program.env}, log)
            self._setups[key] = f"setup: {problem}" if problem else ""
        return self._setups.get(key, "")

    def _start(self, command: Sequence[str], program: BenchmarkProgram, environ: Mapping[str, str], log: Path) -> str:
        """Run a command to its end, in a session of its own; returns why it failed, or an empty text."""
        with open(log, "wb") as output:
            try:
                self._child = subprocess.Popen(
                    command, cwd=program.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return f"{command[0]} cannot be started in {program.folder or os.getcwd()}: {error.strerror or error}"
        try:
            code = self._child.wait(program.timeout_s)
            problem = "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        except subprocess.TimeoutExpired:
            problem = f"not done after {program.timeout_s:g} s (timeoutSeconds)"
        finally:
            self._kill_child()
        return f"{problem}{_end_of(log)}" if problem else ""

    def _kill_child(self) -> None:
        """Kill the child and what it left behind in its session."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    def stop(self, signum: int, frame: FrameType | None) -> NoReturn:
        """The handler of SIGTERM: the present run is repeated by the next attempt."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        os._exit(128 + signum)

    def _skipped(self, run: Run, failed: str) -> Record:
        error = f"not started, since {failed} failed"
        return Record(program=run.program.name, repetition=run.repetition, traced=run.traced, error=error, at=_now())

    def _append(self, record: Record) -> None:
        """Append the record in one write that is on disk when this returns. Ends a line that a kill cut off."""
        line = json.dumps(asdict(record)).encode() + b"\n"
        with open(self._results, "ab+") as results:
            if results.tell() and not self._ends_with_newline():
                line = b"\n" + line
            results.write(line)
            results.flush()
            os.fsync(results.fileno())

    def _ends_with_newline(self) -> bool:
        with open(self._results, "rb") as results:
            results.seek(-1, os.SEEK_END)
            return results.read(1) == b"\n"

    def _read_records(self) -> dict[tuple[str, int, bool], Record]:
        """The records of earlier attempts; a line that was cut off is dropped, and its run repeated."""
        found = {}
        for line in self._results.read_text().splitlines() if self._results.exists() else ():
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[record.program, record.repetition, record.traced] = record
        return found

    def _print(self, record: Record) -> None:
        print(json.dumps({RECORD: asdict(record)}), flush=True)


def _children_cpu_s() -> float:
    """CPU seconds of all children that ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end_of(log: Path) -> str:
    """The end of a program's output, as a part of an error."""
    try:
        with open(log, "rb") as output:
            output.seek(max(0, os.stat(log).st_size - _MAX_OUTPUT))
            text = output.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; the end of its output:\n{text}" if text else "; it printed nothing"


def _now() -> float:
    return time.time()


def main(plan: Sequence[Run], run_dir: Path) -> int:
    """Execute a plan. Returns the exit code: 0 if every run has a record, also of a failure, which the record has."""
    runner = Runner(run_dir, dict(os.environ))
    signal.signal(signal.SIGTERM, runner.stop)
    failed = runner.run_all(plan)
    if failed:
        print(f"bench: {failed} benchmarks failed", file=sys.stderr, flush=True)
    return 0
