"""The report's beginning: what stands in its way costs the report, never the jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.lifecycle import transitions
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.local.home import Home, open_home
from muster.local.wiring import assemble


@pytest.fixture
def opened(home: Path) -> Home:
    return open_home(home)


@pytest.fixture
def parts(opened: Home) -> Iterator[DaemonComponents]:
    parts = assemble(opened, "1x8", None)
    yield parts
    parts.reports.stop()
    parts.store.close()


def add_ended(parts: DaemonComponents, name: str) -> spec.TrainingJob:
    """A traced job that is over and has no report yet."""
    (job,) = parts.service.submit([shell_job(name, "true", trace={"startStep": 1, "steps": 1})], dry_run=False)
    status = transitions.finish(job.status, "Complete", "Completed", "", time.time())
    with parts.store.transaction():
        parts.store.put(job.model_copy(update={"status": status}))
    return job


def one_round(home: Home, parts: DaemonComponents) -> None:
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT)
    ControlLoop(home, parts, 60.0, lock)._run_cycle()
    os.close(lock)


def test_a_file_where_the_reports_folder_should_be_is_an_event(opened: Home, parts: DaemonComponents) -> None:
    job = add_ended(parts, "blocked")
    run_dir = parts.cluster.run_dir(job)
    run_dir.mkdir(parents=True)
    (run_dir / "report").write_text("the user's own")
    one_round(opened, parts)
    (event,) = parts.store.events(job.metadata.uid)
    assert (event.reason, "could not be started" in event.message) == ("ReportFailed", True)
    assert parts.store.jobs[job.metadata.uid].status.traces == spec.TraceStatus()


def test_the_engine_steps_while_reports_cannot_even_say_that_they_failed(opened: Home, parts: DaemonComponents) -> None:
    job = add_ended(parts, "traced")
    run_dir = parts.cluster.run_dir(job)
    run_dir.mkdir(parents=True)
    (run_dir / "report").write_text("")
    (other,) = parts.service.submit([shell_job("other", "true")], dry_run=False)
    with parts.store.transaction():  # a disk that takes everything but this note
        parts.store._connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON events WHEN NEW.reason = 'ReportFailed'"
            " BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    one_round(opened, parts)
    assert parts.store.jobs[other.metadata.uid].status.phase == "Admitted"
