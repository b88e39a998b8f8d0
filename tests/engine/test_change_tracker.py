from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster import spec
from muster.change_tracker import ChangeTracker, TimerQueue

BODY: dict[str, Any] = {"roles": [{"name": "a", "template": {"spec": {"containers": [{}]}}}]}


def job(uid: str) -> spec.TrainingJob:
    return spec.TrainingJob.model_validate({"metadata": {"name": "a", "uid": uid}, "spec": BODY})


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4), max_size=6
)


@given(STEPS)
def test_exactly_the_objects_with_another_identity_have_changed(steps: list[dict[str, tuple[int, int]]]) -> None:
    jobs = {(uid, version): job(uid) for uid in "abcd" for version in range(3)}
    pods = {(uid, version): (object(),) for uid in "abcd" for version in (1, 2)}  # version 0: none
    changes, before = ChangeTracker(), dict[str, tuple[int, int]]()
    for now in steps:
        beside = {uid: pods[uid, version] for uid, (_, version) in now.items() if version}
        found = changes.diff([jobs[uid, version] for uid, (version, _) in now.items()], beside)
        fresh = [uid for uid in now if uid not in before or now[uid][0] != before[uid][0]]
        assert [job.metadata.uid for job in found.changed] == fresh
        assert found.touched == {uid for uid in now if uid not in fresh and now[uid][1] != before[uid][1]}
        assert found.removed == before.keys() - now.keys()
        before = now


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20)), max_size=20), st.integers(0, 20))
def test_a_timer_is_due_once_at_the_time_that_was_set_last(settings: list[tuple[str, int | None]], now: int) -> None:
    alarms, last = TimerQueue(), dict[str, int | None]()
    for uid, at in settings:
        alarms.schedule(uid, at)
        last[uid] = at
    expected = {uid for uid, at in last.items() if at is not None and at <= now}
    later = [at for at in last.values() if at is not None and at > now]
    assert set(alarms.pop_due(now)) == expected
    assert alarms.pop_due(now) == []
    assert alarms.next_time() == min(later, default=None)
