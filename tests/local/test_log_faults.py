"""Since when the logs of a job cannot be written is known of the jobs that run, and of no others."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.lifecycle.conditions import ADMITTED, COMPLETE, set_condition
from muster.lifecycle.transitions import finish
from muster.local.service import ChangeNotifier, DaemonService


def running(uid: str) -> spec.TrainingJob:
    job = shell_job(uid, "true")
    status = set_condition(job.status, ADMITTED, True, "Admitted", "it has its place", 1.0)
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid}), "status": status})


@pytest.mark.parametrize("deleted", [True, False])
def test_the_log_fault_of_a_job_that_ended_or_was_deleted_is_dropped(tmp_path: Path, deleted: bool) -> None:
    jobs = {uid: running(uid) for uid in ("one", "two")}
    unreachable = tmp_path / ("x" * 300)  # a name longer than any file system takes
    cluster: Any = SimpleNamespace(lock=threading.Lock(), run_dir=lambda job: unreachable)
    nothing = cast(Any, None)
    service = DaemonService(nothing, cast(Any, SimpleNamespace(jobs=jobs)), cluster, nothing, ChangeNotifier())
    service.jobs(None)
    assert sorted(service._log_faults) == ["one", "two"]
    if deleted:
        del jobs["one"]
    else:
        over = finish(jobs["one"].status, COMPLETE, "Completed", "it is over", 2.0)
        jobs["one"] = jobs["one"].model_copy(update={"status": over})
    service.jobs(None)
    assert list(service._log_faults) == ["two"]
