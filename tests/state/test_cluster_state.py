from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api import spec
from muster.cluster import PodView
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.state import ClusterState
from muster.state.cluster_state import TimerQueue
from muster.state.jobs import NEVER
from muster.workload.observed import ObservedState

BODY: dict[str, Any] = {"roles": [{"name": "a", "template": {"spec": {"containers": [{}]}}}]}


def job(uid: str) -> spec.TrainingJob:
    return spec.TrainingJob.model_validate({"metadata": {"name": "a", "uid": uid}, "spec": BODY})


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4), max_size=6
)


def pod(uid: str, version: int) -> PodView:
    return PodView(f"{uid}-0", uid, "a", 0, version, "n0", "Running")


@given(STEPS)
def test_exactly_the_objects_with_another_identity_have_changed(steps: list[dict[str, tuple[int, int]]]) -> None:
    jobs = {(uid, version): TrainingJobWorkload(job(uid)) for uid in "abcd" for version in range(3)}
    pods = {(uid, version): (pod(uid, version),) for uid in "abcd" for version in (1, 2)}  # version 0: none
    state, before = ClusterState(), dict[str, tuple[int, int]]()
    for number, now in enumerate(steps):
        beside = {uid: pods[uid, version] for uid, (_, version) in now.items() if version}
        observed = tuple(jobs[uid, version] for uid, (version, _) in now.items())
        found = state.update(ObservedState(float(number), (), (), (), observed, beside))
        fresh = [uid for uid in now if uid not in before or now[uid][0] != before[uid][0]]
        touched = sorted(uid for uid in now if uid not in fresh and now[uid][1] != before[uid][1])
        assert found.jobs == tuple(fresh)
        assert found.reconcile == (*fresh, *touched)
        assert found.project == frozenset(touched)
        assert state.jobs.keys() == now.keys()
        assert all(state.jobs[uid].workload is jobs[uid, now[uid][0]] for uid in now)
        before = now


@pytest.mark.parametrize("rebuilt", [False, True])
def test_every_job_is_processed_again_after_a_recheck_of_all_or_a_failure(rebuilt: bool) -> None:
    state, jobs = ClusterState(), tuple(TrainingJobWorkload(job(uid)) for uid in "abc")
    observed = ObservedState(0.0, (), (), (), jobs, {})
    state.update(observed)
    assert state.update(observed).reconcile == ()
    state.recheck(["b", "unknown"])
    assert state.update(observed).reconcile == ("b",)
    if rebuilt:
        state = state.rebuilt()
    else:
        state.recheck()
    changes = state.update(replace(observed, workloads=jobs[1:]))
    assert changes.reconcile == ("b", "c")
    assert state.jobs.keys() == {"b", "c"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20)), max_size=20), st.integers(0, 20))
def test_a_timer_is_due_once_at_the_time_that_was_set_last(settings: list[tuple[str, int | None]], now: int) -> None:
    timers, last = TimerQueue(), dict[str, int | None]()
    for uid, at in settings:
        timers.schedule(uid, NEVER if at is None else at)
        last[uid] = at
    expected = {uid for uid, at in last.items() if at is not None and at <= now}
    later = [at for at in last.values() if at is not None and at > now]
    assert set(timers.pop_due(now)) == expected
    assert timers.pop_due(now) == []
    assert timers.next_time() == min(later, default=None)
