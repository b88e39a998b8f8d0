"""The report of a traced job, built once it has ended, in a child of low priority.

A report that cannot be built is an event, never a failed job. That it was tried is in the job's status, so a daemon
that was killed meanwhile tries again, and one that was not never does it twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster import spec
from muster.lifecycle import is_finished
from muster.local.records import EventRecord
from muster.local.store import SqliteStore
from muster.tracing.recording import RECORDED_BY

_BUILD_TIMEOUT_S = 900.0


@dataclass(slots=True)
class _Build:
    uid: str
    child: subprocess.Popen[bytes]
    started_at: float  # monotonic


class ReportBuilder:
    """At most one report at a time. Its owner holds the lock of the store."""

    def __init__(
        self, store: SqliteStore, run_dir: Callable[[spec.TrainingJob], Path], environment: dict[str, str]
    ) -> None:
        self._store = store
        self._run_dir = run_dir
        own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self._environment = environment | own | {"CUDA_VISIBLE_DEVICES": ""}
        self._build: _Build | None = None

    @property
    def busy(self) -> bool:
        """Whether one is being built."""
        return self._build is not None

    def step(self) -> None:
        """Begin the next one, or note the end of the one that is built."""
        if self._build is None:
            job = next((job for job in self._store.jobs.values() if self._is_due(job)), None)
            if job is not None:
                try:
                    self._build = self._begin(job)
                except OSError as error:
                    self._record_result(job, f"the report could not be begun: {error}")
            return
        if self._build.child.poll() is None:
            if time.monotonic() - self._build.started_at > _BUILD_TIMEOUT_S:
                self._build.child.kill()
            return
        build, self._build = self._build, None
        job = self._store.jobs.get(build.uid)
        if job is not None:
            code, log = build.child.returncode, self._run_dir(job) / "report" / "build.log"
            reason = f"the report could not be built (exit code {code})"
            if code == 1 and not any((self._run_dir(job) / "traces").rglob("rank-*")):
                reason = f"no trace was recorded: {RECORDED_BY}"
            self._record_result(job, f"{reason}; see {log}" if code else "")

    def stop(self) -> None:
        """Give up the one that is built: the next daemon begins it anew."""
        if self._build is not None:
            self._build.child.kill()
            self._build.child.wait()

    def _is_due(self, job: spec.TrainingJob) -> bool:
        if job.spec.trace is None or job.status.traces is not None or not is_finished(job.status):
            return False
        return all(pod.finished for pod in self._store.pods.get(job.metadata.uid, {}).values())

    def _begin(self, job: spec.TrainingJob) -> _Build:
        run_dir = self._run_dir(job)
        folder = run_dir / "report"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments = [str(run_dir), job.metadata.name, str(os.getpid())]
        command = [sys.executable, "-m", "muster.local.build_report", *arguments]
        with open(folder / "build.log", "wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self._environment
            )
        return _Build(job.metadata.uid, child, time.monotonic())

    def _record_result(self, job: spec.TrainingJob, error: str) -> None:
        """Write down that it was tried, and why there is none; empty when there should be one."""
        run_dir = self._run_dir(job)
        page = run_dir / "report" / "report.html"
        good = not error and page.exists()
        traces = spec.TraceStatus(report=str(page) if good else "", files=_count_collected_traces(run_dir))
        status = job.status.model_copy(update={"traces": traces})
        if good:
            event = EventRecord(job.metadata.uid, time.time(), "Normal", "ReportBuilt", f"report: {page}")
        else:
            error = error or f"the report could not be built: there is no {page}"
            event = EventRecord(job.metadata.uid, time.time(), "Warning", "ReportFailed", error)
        with self._store.transaction():
            self._store.put(job.model_copy(update={"status": status}))
            self._store.add_event(event)


def _count_collected_traces(run_dir: Path) -> int:
    """How many good traces the manifests list."""
    files: set[str] = set()
    for path in (run_dir / "traces").glob("manifest-*.json"):
        try:
            entries = json.loads(path.read_bytes())["traces"]
            files |= {entry["file"] for entry in entries if entry["status"] == "ok"}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return len(files)
