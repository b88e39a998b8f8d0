"""Calls of the daemon's API: unwritable logs are tracked for running jobs only."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.local.support import shell_job

from muster.api import spec
from muster.local.service import ChangeNotifier, DaemonService
from muster.workload.conditions import ADMITTED, COMPLETE, set_condition
from muster.workload.transitions import finish


def running(uid: str) -> spec.TrainingJob:
    job = shell_job(uid, "true")
    status = set_condition(job.status, ADMITTED, True, "Admitted", "admitted", 1.0)
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid}), "status": status})


@pytest.mark.parametrize("deleted", [True, False])
def test_the_log_fault_of_a_finished_or_deleted_job_is_removed(tmp_path: Path, deleted: bool) -> None:
    jobs = {uid: running(uid) for uid in ("one", "two")}
    unreachable = tmp_path / ("x" * 300)  # longer than any file system allows
    cluster: Any = SimpleNamespace(lock=threading.Lock(), run_dir=lambda job: unreachable)
    unused = cast(Any, None)
    service = DaemonService(unused, cast(Any, SimpleNamespace(jobs=jobs)), cluster, unused, ChangeNotifier())
    service.jobs(None)
    assert sorted(service._log_faults) == ["one", "two"]
    if deleted:
        del jobs["one"]
    else:
        finished = finish(jobs["one"].status, COMPLETE, "Completed", "completed", 2.0)
        jobs["one"] = jobs["one"].model_copy(update={"status": finished})
    service.jobs(None)
    assert list(service._log_faults) == ["two"]
