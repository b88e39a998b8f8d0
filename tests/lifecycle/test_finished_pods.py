"""A completed pod does not count as lost when the cluster deletes it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.lifecycle.cases import NOW, condition, created, failed, job, pods_of, reconcile, running, with_status

from muster.api import spec
from muster.cluster import PodView
from muster.workload import transitions
from muster.workload.placement import recorded_finished_pods, to_finished_pods


def done(pod: PodView, at: float = NOW + 10) -> PodView:
    return replace(pod, phase="Succeeded", ready=False, exit_code=0, finished_at=at)


def recorded_after(one: spec.TrainingJob, pods: tuple[PodView, ...], now: float) -> spec.TrainingJob:
    return with_status(one, reconcile(one, pods, now=now).status)


def test_it_is_recorded_after_some_seconds_and_its_pod_may_go_then() -> None:
    one = running()
    first, *others = pods_of(one)
    pods = (done(first), *others)
    early = reconcile(one, pods, now=NOW + 11)
    assert early.status is one.status, "most gangs end as a whole, and one write tells that"
    assert early.wake_at == NOW + 15
    one = recorded_after(one, pods, NOW + 15)
    assert one.status.finished_pods == [spec.FinishedPods(role="trainer", indexes="0")]
    later = reconcile(one, tuple(others), now=NOW + 80)
    assert later.status is one.status
    assert created(later) == []


def test_the_gang_completes_with_pods_that_are_gone() -> None:
    one = running()
    first, *others = pods_of(one)
    one = recorded_after(one, (done(first), *others), NOW + 15)
    end = reconcile(one, tuple(done(pod, NOW + 90) for pod in others), now=NOW + 90).status
    assert condition(end, "Complete") == ("True", "Completed")
    assert end.node_losses == 0


def test_it_is_recorded_at_once_if_its_pod_is_gone() -> None:
    one = running()
    first, *others = pods_of(one)
    status = reconcile(one, (replace(done(first), tombstone=True), *others), now=NOW + 10).status
    assert [part.indexes for part in status.finished_pods] == ["0"]


def test_it_is_written_with_other_changes() -> None:
    one = running()
    first, *others = pods_of(one)
    edited = one.model_copy(update={"metadata": one.metadata.model_copy(update={"generation": 2})})
    status = reconcile(edited, (done(first), *others), now=NOW + 11).status
    assert [part.indexes for part in status.finished_pods] == ["0"]


def test_a_pod_that_did_not_finish_is_still_a_loss() -> None:
    one = running()
    first, second, _ = pods_of(one)
    one = recorded_after(one, (done(first), *pods_of(one)[1:]), NOW + 15)
    status = reconcile(one, (second,), now=NOW + 80).status
    assert condition(status, "Evicted") == ("True", "PodLost")
    assert status.node_losses == 1


def test_a_pod_that_was_stopped_has_not_finished() -> None:
    one = running(job(grace=600))
    first, *others = pods_of(one)
    status = reconcile(one, (replace(done(first), deleting=True), *others), now=NOW + 100).status
    assert status.finished_pods == []


def test_a_restart_asks_again_for_the_capacity_of_completed_pods_and_retains_that_of_the_others() -> None:
    one = running()
    first, second, third = pods_of(one)
    pods = (done(first), failed(second, at=NOW + 12), third)  # not recorded yet
    stopping = reconcile(one, pods, now=NOW + 12)
    assert condition(stopping.status, "Evicted") == ("True", "RestartElsewhere")
    assert stopping.status.finished_pods == [spec.FinishedPods(role="trainer", indexes="0")]
    requeued = reconcile(with_status(one, stopping.status), now=NOW + 20).status
    assert (requeued.phase, requeued.attempt, requeued.restarts, requeued.finished_pods) == ("Pending", 1, 1, [])
    assert requeued.nomination is not None
    (part,) = requeued.nomination.placement
    assert [(share.node, share.indexes) for share in part.nodes] == [("n0", "0"), ("n1", "1")]
    assert requeued.requeue_after == NOW + 30


def test_without_completed_pods_a_gang_restarts_where_it_is() -> None:
    one = running()
    first, *others = pods_of(one)
    status = reconcile(one, (failed(first, at=NOW + 12), *others), now=NOW + 12).status
    assert (status.phase, status.attempt) == ("Admitted", 1)


def test_a_suspended_gang_has_no_finished_pods() -> None:
    one = running()
    first, second, third = pods_of(one)
    one = recorded_after(one, (done(first), second, third), NOW + 15)
    assert transitions.suspend(one.status, NOW + 80).finished_pods == []


def test_a_gang_of_which_a_pod_was_done_and_gone_before_all_were_ready_still_starts() -> None:
    one = running()
    status = one.status.model_copy(update={"started_at": None, "conditions": one.status.conditions[:1]})
    one = with_status(one, status.model_copy(update={"finished_pods": to_finished_pods([("trainer", 0)])}))
    result = reconcile(one, pods_of(one)[1:], now=NOW + 10)
    assert condition(result.status, "PodsReady") == ("True", "Ready")
    assert created(result) == []


@given(st.frozensets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40))))
def test_the_record_says_what_was_recorded(slots: frozenset[tuple[str, int]]) -> None:
    parts = to_finished_pods(slots)
    assert recorded_finished_pods(spec.TrainingJobStatus(finished_pods=parts)) == slots
    assert to_finished_pods(slots) == parts
    assert all(part.indexes for part in parts)
