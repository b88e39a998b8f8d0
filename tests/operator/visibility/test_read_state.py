"""The state that the operator's read API answers from: all jobs, recent preemptions, and who leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.caches import FakeDryRuns, new_cache
from tests.operator.objects import job_document, job_seen, read

from muster.api.spec import TrainingJobStatus
from muster.errors import ClusterError
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.objects import RawCustomObject
from muster.model import Snapshot, Wait
from muster.workload import transitions
from muster_operator.visibility.state_source import StateSource

EVICTED = {
    "type": "Evicted",
    "status": "True",
    "reason": "Preempted",
    "message": "preempted for default/b",
    "lastTransitionTime": "2026-11-21T10:00:00Z",
}


def test_readers_see_jobs_that_the_engine_does_not_see_yet() -> None:
    cache, _ = new_cache(FakeDryRuns(None))
    cache.jobs.on_upsert(job_seen())
    assert [job.metadata.name for job in training_jobs(cache.read_state().workloads)] == ["llama"]
    assert training_jobs(cache.observe().workloads) == ()


def test_reading_does_not_count_as_observing() -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    assert changes.during(cache.read_state) == 0
    assert cache.jobs.has_unobserved()
    cache.observe()
    assert not cache.jobs.has_unobserved()


def test_preemptions_are_noted_from_watches_and_from_own_writes() -> None:
    cache, _ = new_cache()
    status = {"attempt": 1, "submittedAt": "2026-11-21T09:00:00Z", "conditions": [EVICTED]}
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("a"), "status": status}))
    cache.jobs.on_upsert(job_seen("b"))
    evicted = transitions.evict(TrainingJobStatus(), "Reclaimed", "reclaimed for default/c", 2e9)
    cache.jobs.on_status_written("uid-b", evicted, 7)
    cache.jobs.on_status_written("uid-b", TrainingJobStatus(phase="Running"), 8)
    assert [(one.metadata.name, one.reason) for one in cache.preemptions.newest_first()] == [
        ("b", "Reclaimed"), ("a", "Preempted"),
    ]  # fmt: skip


def test_only_a_leader_answers_with_the_result_of_its_cycle() -> None:
    cache, _ = new_cache()
    missing, leads = ["pods"], [True]
    result = SimpleNamespace(waits={"u": Wait("u", "QuotaExceeded", "")}, snapshot=Snapshot(5.0, (), (), (), (), ()))
    leader: Any = SimpleNamespace(term=SimpleNamespace(last_cycle=None, last_cycle_id=""))

    def state() -> Any:
        return StateSource(cache, cast(Any, leader), "me", lambda: missing, lambda: leads[0]).state()

    with pytest.raises(ClusterError, match="not listed yet: pods"):
        state()
    missing.clear()
    assert (state().leading, state().cycle) == (True, None)
    leader.term = SimpleNamespace(last_cycle=result, last_cycle_id="t-3")
    assert (state().cycle.id, state().source.cycle_at, state().source.identity) == ("t-3", 5.0, "me")
    leads[0] = False  # its Lease has expired, and the term has not ended yet
    assert (state().leading, state().cycle) == (False, None)


def test_requests_within_a_second_share_one_state() -> None:
    cache, _ = new_cache()
    leader: Any = SimpleNamespace(term=None)
    source = StateSource(cache, leader, "me", list, lambda: False)
    first = source.state()
    assert source.state() is first
    source._made_at -= 2.0
    assert source.state() is not first
