"""Reports that cannot be built: an event and one line in the log; jobs are not affected."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.local.support import shell_job

from muster.api import spec
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.workload import transitions


def add_finished(parts: DaemonComponents, name: str) -> spec.TrainingJob:
    """A finished traced job without report."""
    (job,) = parts.service.submit([shell_job(name, "true", trace={"startStep": 1, "steps": 1})], dry_run=False)
    status = transitions.finish(job.status, "Complete", "Completed", "", time.time())
    with parts.store.transaction():
        parts.store.put(job.model_copy(update={"status": status}))
    return job


def test_a_report_that_cannot_be_started_is_an_event(loop: ControlLoop, parts: DaemonComponents) -> None:
    job = add_finished(parts, "blocked")
    run_dir = parts.cluster.run_dir(job)
    run_dir.mkdir(parents=True)
    (run_dir / "report").write_text("a file of the user")
    loop._run_cycle()
    (event,) = parts.store.events(job.metadata.uid)
    assert (event.reason, "could not be started" in event.message) == ("ReportFailed", True)
    assert parts.store.jobs[job.metadata.uid].status.traces == spec.TraceStatus()


def test_cycles_continue_if_the_event_of_a_failed_report_cannot_be_stored(
    loop: ControlLoop, parts: DaemonComponents
) -> None:
    job = add_finished(parts, "traced")
    run_dir = parts.cluster.run_dir(job)
    run_dir.mkdir(parents=True)
    (run_dir / "report").write_text("")
    (other,) = parts.service.submit([shell_job("other", "true")], dry_run=False)
    with parts.store.transaction():  # a disk on which only this event cannot be stored
        parts.store._connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON events WHEN NEW.reason = 'ReportFailed'"
            " BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    loop._run_cycle()
    assert parts.store.jobs[other.metadata.uid].status.phase == "Admitted"


@pytest.mark.parametrize("left", ["nothing", "a file where the report goes"])
def test_a_report_that_cannot_be_built_prints_one_line_with_the_reason(tmp_path: Path, left: str) -> None:
    if left != "nothing":
        (tmp_path / "metrics").mkdir()
        (tmp_path / "metrics/rank-0.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
        (tmp_path / "report").write_text("no folder")
    command = [sys.executable, "-m", "muster.local.reports", str(tmp_path), "llama", str(os.getpid())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert str(tmp_path) in line
