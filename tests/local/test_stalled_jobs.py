"""Where the ranks of a job are that makes no step: asked once, then an Event."""

from __future__ import annotations

import json
import time

import pytest
from tests.local.support import shell_job

from muster.api import spec
from muster.cluster import RecordEvent
from muster.kinds.trainingjob.stalls import NO_STEP, RANKS_STALLED, STALLED
from muster.local import stalled_jobs
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.workload.conditions import set_condition


def stalled_job(loop: ControlLoop, parts: DaemonComponents) -> spec.TrainingJob:
    """A job whose stall the engine has just recorded."""
    (job,) = parts.service.submit([shell_job("hung", "true")], dry_run=False)
    message = "no step for 12 min after step 7; to see where its ranks are: muster trace hung --stacks"
    status = set_condition(job.status, STALLED, True, NO_STEP, message, time.time())
    with parts.store.transaction():
        parts.store.put(job.model_copy(update={"status": status}))
    loop._ask_stalled([RecordEvent(job.metadata.uid, "Warning", NO_STEP, message)])
    return job


def events(parts: DaemonComponents, job: spec.TrainingJob) -> list[tuple[str, str]]:
    return [(event.reason, event.message) for event in parts.store.events(job.metadata.uid)]


def test_the_answers_of_the_launchers_are_compared_in_an_event(loop: ControlLoop, parts: DaemonComponents) -> None:
    job = stalled_job(loop, parts)
    folder = parts.cluster.run_dir(job) / "capture"
    request = json.loads((folder / "stacks-request.json").read_text())
    assert request["attempt"] == 0
    for rank, frames in enumerate((["wait (train.py:7)"], ["wait (train.py:7)"], ["sleep (data.py:3)"])):
        assert parts.stalled.busy
        parts.stalled.step()
        assert events(parts, job) == []
        answer = {**request, "rank": rank, "frames": frames, "world_size": 3}
        (folder / f"stacks-rank-{rank}.json").write_text(json.dumps(answer))
    parts.stalled.step()
    message = "no step for 12 min after step 7; rank 2 is in sleep (data.py:3); ranks 0, 1 are in wait (train.py:7)"
    assert events(parts, job) == [(RANKS_STALLED, message)]
    assert not parts.stalled.busy


@pytest.mark.parametrize("what", ["no launcher answers", "a step is made"])
def test_without_an_answer_in_time_or_after_a_step_there_is_no_event(
    loop: ControlLoop, parts: DaemonComponents, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(stalled_jobs, "STACKS_WITHIN_S", 0.0)
    job = stalled_job(loop, parts)
    if what == "a step is made":
        folder = parts.cluster.run_dir(job) / "capture"
        request = json.loads((folder / "stacks-request.json").read_text())
        (folder / "stacks-rank-0.json").write_text(json.dumps({**request, "rank": 0, "frames": ["f (a.py:1)"]}))
        status = set_condition(job.status, STALLED, False, "Progressing", "", time.time())
        with parts.store.transaction():
            parts.store.put(job.model_copy(update={"status": status}))
    parts.stalled.step()
    assert events(parts, job) == []
    assert not parts.stalled.busy
