"""The time of a job since its submission, by cause, as its status says."""

from __future__ import annotations

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api.spec import TimeSpentStatus, TrainingJob
from muster.engine import Engine
from muster.simulate import JobBehavior
from muster.usage.time_spent import next_time_spent, time_spent
from muster.workload.conditions import with_status_fields


def spent_s(cluster: ScenarioCluster, uid: str, now: float) -> dict[str, float]:
    return {cause: ms / 1000 for cause, ms in time_spent(cluster.job(uid), now).items() if ms}


def test_a_job_that_waits_runs_fails_and_runs_again_has_each_second_once() -> None:
    cluster = ScenarioCluster(nodes(1, gpus=8), [flavor()], [queue(gpus=8)])
    first = cluster.submit(job("first", 1, 8), JobBehavior(100.0))
    behavior = JobBehavior(300.0, start_delay_s=20.0, exit_codes=(1,), fails_after_s=50.0)
    uid = cluster.submit(job("second", 1, 8, failurePolicy={"maxRestarts": 2}), behavior)
    settle(Engine(), cluster, until=3600.0)
    status = cluster.job(uid).status
    assert status.phase == "Succeeded"
    assert status.finished_at is not None
    found = spent_s(cluster, uid, 3600.0)
    assert sum(found.values()) == pytest.approx(status.finished_at - (status.submitted_at or 0.0), abs=0.001)
    assert found == spent_s(cluster, uid, 9999.0), "it has ended"
    waited = {cause: seconds for cause, seconds in found.items() if cause.startswith("waiting/")}
    assert sum(waited.values()) == pytest.approx(100.0, abs=5.0), found
    assert found["start"] == pytest.approx(20.0, abs=5.0)
    assert found["running"] == pytest.approx(350.0, abs=10.0)
    assert found["recovery"] >= 20.0, "until its pods are ready again"
    assert "unknown" not in found
    assert sum(spent_s(cluster, first, 3600.0).values()) == pytest.approx(100.0, abs=5.0)


def test_a_job_that_no_cycle_has_seen_waits_since_its_submission() -> None:
    one = TrainingJob.model_validate({"metadata": {"name": "a", "creationTimestamp": "2026-11-29T00:00:00Z"}, "spec": {
        "roles": [{"name": "worker", "template": {"spec": {"containers": [{}]}}}]}})  # fmt: skip
    assert one.metadata.creation_timestamp is not None
    assert time_spent(one, one.metadata.creation_timestamp + 12.5) == {"waiting/NotReconciled": 12_500}


def test_a_job_without_an_account_is_unknown_until_it_ended() -> None:
    cluster = ScenarioCluster(nodes(1, gpus=8), [flavor()], [queue(gpus=8)])
    one = cluster.job(cluster.submit(job("one", 1, 8), JobBehavior(30.0)))
    settle(Engine(), cluster, until=100.0)
    one = cluster.job(one.metadata.uid)
    status = with_status_fields(one.status, {"time_spent": None, "submitted_at": 10.0, "finished_at": 40.0})
    assert time_spent(one.model_copy(update={"status": status}), 9999.0) == {"unknown": 30_000}


def test_the_same_cause_is_not_written_again_and_a_clock_that_goes_back_takes_nothing_away() -> None:
    cluster = ScenarioCluster(nodes(1, gpus=8), [flavor()], [queue(gpus=8)])
    uid = cluster.submit(job("one", 1, 8), JobBehavior(1000.0))
    settle(Engine(), cluster, until=100.0)
    one = cluster.job(uid)
    assert one.status.time_spent is not None
    assert one.status.time_spent.cause == "running"
    assert next_time_spent(one, one.status, 200.0) is one.status.time_spent
    suspended = with_status_fields(one.status, {"finished_at": 0.0})
    after = next_time_spent(one, suspended, 0.0)
    assert isinstance(after, TimeSpentStatus)
    assert after.milliseconds["running"] == 0
    assert after.cause == ""
