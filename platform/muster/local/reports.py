"""The report of a traced job, built once after the job has ended.

`python -m muster.local.reports RUN_DIR JOB PARENT_PID` builds it: a separate process at low priority, so that reading
large traces cannot block or kill the daemon. A report that cannot be built is an event, not a failure of the job. The
result is in the job's status, so that every report is attempted once, and again if the daemon was killed meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster.api import spec
from muster.errors import InvalidTrace
from muster.local.run_folder import rank_heartbeats
from muster.local.store import EventRecord, SqliteStore
from muster.tracing import no_trace_reason
from muster.workload.conditions import is_finished

_BUILD_TIMEOUT_S = 900.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Build:
    uid: str
    child: subprocess.Popen[bytes]
    started_at: float  # monotonic


class ReportBuilder:
    """Builds at most one report at a time. The caller holds the lock of the store."""

    def __init__(
        self, store: SqliteStore, run_dir: Callable[[spec.TrainingJob], Path], environment: dict[str, str]
    ) -> None:
        self._store = store
        self._run_dir = run_dir
        inherited = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self._environment = environment | inherited | {"CUDA_VISIBLE_DEVICES": ""}
        self._build: _Build | None = None

    @property
    def busy(self) -> bool:
        return self._build is not None

    def step(self) -> None:
        """Start the next report, or record the result of the current one."""
        if self._build is None:
            job = next((job for job in self._store.jobs.values() if self._is_due(job)), None)
            if job is not None:
                try:
                    self._build = self._start(job)
                except OSError as error:
                    self._record_result(job, f"the report could not be started: {error}")
            return
        if self._build.child.poll() is None:
            if time.monotonic() - self._build.started_at > _BUILD_TIMEOUT_S:
                self._build.child.kill()
            return
        build, self._build = self._build, None
        job = self._store.jobs.get(build.uid)
        if job is not None:
            code, log = build.child.returncode, self._run_dir(job) / "report" / "build.log"
            message = f"the report could not be built (exit code {code})"
            run_dir = self._run_dir(job)
            if code == 1 and job.spec.trace and not any((run_dir / "traces").rglob("rank-*")):
                reason = no_trace_reason(job.spec.trace.start_step, rank_heartbeats(run_dir))
                message = f"no trace was recorded: {reason}"
            self._record_result(job, f"{message}; see {log}" if code else "")

    def stop(self) -> None:
        """Kill the current build; the next daemon repeats it."""
        if self._build is not None:
            self._build.child.kill()
            self._build.child.wait()

    def _is_due(self, job: spec.TrainingJob) -> bool:
        if job.spec.trace is None or job.status.traces is not None or not is_finished(job.status):
            return False
        return all(pod.finished for pod in self._store.pods.get(job.metadata.uid, {}).values())

    def _start(self, job: spec.TrainingJob) -> _Build:
        run_dir = self._run_dir(job)
        folder = run_dir / "report"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments = [str(run_dir), job.metadata.name, str(os.getpid())]
        command = [sys.executable, "-m", "muster.local.reports", *arguments]
        with open(folder / "build.log", "wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self._environment
            )
        return _Build(job.metadata.uid, child, time.monotonic())

    def _record_result(self, job: spec.TrainingJob, error: str) -> None:
        """Record the report, or why there is none; `error` is empty if it was built."""
        run_dir = self._run_dir(job)
        page = run_dir / "report" / "report.html"
        was_built = not error and page.exists()
        traces = spec.TraceStatus(report=str(page) if was_built else "", files=_count_collected_traces(run_dir))
        status = job.status.model_copy(update={"traces": traces})
        if was_built:
            event = EventRecord(job.metadata.uid, time.time(), "Normal", "ReportBuilt", f"report: {page}")
        else:
            error = error or f"the report could not be built: {page} does not exist"
            event = EventRecord(job.metadata.uid, time.time(), "Warning", "ReportFailed", error)
        with self._store.transaction():
            self._store.put(job.model_copy(update={"status": status}))
            self._store.add_event(event)


def _count_collected_traces(run_dir: Path) -> int:
    """The number of valid traces that the manifests list."""
    files: set[str] = set()
    for path in (run_dir / "traces").glob("manifest-*.json"):
        try:
            entries = json.loads(path.read_bytes())["traces"]
            files |= {entry["file"] for entry in entries if entry["status"] == "ok"}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return len(files)


def main(run_dir: Path, job: str, parent: int) -> int:
    """Build one report; returns the exit code, 0 if it was built."""
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
    )  # if the daemon is killed, the next one starts over
    if os.getppid() != parent:
        return 1
    os.nice(10)
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.collect.spool_collector import collect_abandoned
    from muster.tracing.report import build

    try:
        collect_abandoned(run_dir, time.time())
    except OSError as error:  # for example a full disk: the report also reads traces that were not collected
        print(f"traces of terminated collectors were not collected: {error}", file=sys.stderr)
    try:
        build(run_dir, name=job, workers=usable_cores())
    except (InvalidTrace, OSError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
