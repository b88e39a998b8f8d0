from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.lifecycle.cases import (
    NODES,
    NOW,
    PLACEMENT,
    admitted,
    condition,
    created,
    deleted,
    events,
    job,
    pods_of,
    reconcile,
    running,
    with_status,
)  # fmt: skip

from muster.api.spec import TrainingJob
from muster.cluster import CreatePod, PodView
from muster.kinds.trainingjob.pods import pod_name
from muster.model import RolePlacement
from muster.workload import transitions
from muster.workload.conditions import PODS_READY, find_condition, is_admitted


def test_a_new_job_is_stamped_with_its_creation_and_waits() -> None:
    one = job()
    one = one.model_copy(update={"metadata": one.metadata.model_copy(update={"creation_timestamp": 900.0})})
    result = reconcile(one)
    assert result.status.submitted_at == 900.0
    assert result.status.phase == "Pending"
    assert result.writes == ()


def test_an_admitted_gang_gets_all_its_pods_with_indexes_counting_up_through_the_nodes() -> None:
    result = reconcile(admitted())
    assert created(result) == [(0, "n0"), (1, "n0"), (2, "n1")]
    first = next(action for action in result.writes if isinstance(action, CreatePod))
    assert (first.replicas, first.attempt, first.flavor, first.rank0_node) == (3, 0, "h200", "n0")


def test_only_missing_pods_are_created_after_a_crash_in_between() -> None:
    one = admitted()
    assert created(reconcile(one, pods_of(one, "Pending")[:2])) == [(2, "n1")]


def test_asking_again_once_everything_is_done_changes_nothing() -> None:
    one = running()
    result = reconcile(one, pods_of(one))
    assert result.status is one.status
    assert result.writes == ()


def test_a_gang_runs_once_all_pods_are_ready_and_not_before() -> None:
    one = admitted()
    pods = pods_of(one)
    almost = (*pods[:2], replace(pods[2], ready=False))
    assert reconcile(one, almost).status.phase == "Admitted"
    result = reconcile(one, pods, now=NOW + 5)
    assert result.status.phase == "Running"
    assert (result.status.started_at, result.status.pods_ready) == (NOW + 5, 3)


def test_no_pod_is_created_while_one_of_an_older_attempt_is_left() -> None:
    one = running()
    old = pods_of(one)[:1]
    again = with_status(one, transitions.restart(one.status, "Restarting", "", NOW, 0.0))
    result = reconcile(again, old)
    assert created(result) == []
    assert deleted(result) == [old[0].name]
    assert created(reconcile(again, (replace(old[0], deleting=True),))) == []
    assert len(created(reconcile(again))) == 3


def test_names_of_pods_tell_attempts_and_namesakes_apart() -> None:
    names = {
        pod_name("a", uid, role, index, attempt)
        for uid in ("u1", "u2") for role in ("x", "y") for index in (0, 1) for attempt in (0, 1, 2)
    }  # fmt: skip
    assert len(names) == 24
    assert pod_name("a", "u1", "x", 0, 0).startswith("a-x-0-")


def test_a_gang_that_is_late_is_torn_down_whole_and_only_nodes_without_a_ready_pod_are_blamed() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    last = replace(pods_of(one)[2], ready=False)
    up = (*pods_of(one)[:2], last)
    before = reconcile(one, up, now=NOW + 59)
    assert before.status.phase == "Admitted"
    assert before.wake_at == NOW + 60
    result = reconcile(one, up, now=NOW + 60)
    assert condition(result.status, "Evicted") == ("True", "StartTimeout")
    assert (result.status.restarts, result.status.start_retries) == (0, 1)
    assert [entry.node for entry in result.status.blamed_nodes] == ["n1"]
    assert deleted(result) == [pod.name for pod in up]
    gone = reconcile(with_status(one, result.status), now=NOW + 70)
    assert gone.status.phase == "Pending"
    assert gone.status.placement == []
    assert gone.status.requeue_after == NOW + 70 + 10


@pytest.mark.parametrize("blocker", ["Unschedulable", "Image", "Volume"])
def test_an_unmanaged_pod_an_image_or_a_volume_that_keeps_a_pod_from_starting_is_not_blamed_on_its_node(
    blocker: Any,
) -> None:
    one = admitted(job(startTimeoutSeconds=60))
    pods = pods_of(one)
    refused = [replace(pod, phase="Pending", ready=False, pending_reason=blocker) for pod in pods[2:]]
    assert {pod.node for pod in refused} == {"n1"}
    result = reconcile(one, (*pods[:2], *refused), now=NOW + 60)
    assert condition(result.status, "Evicted") == ("True", "StartTimeout")
    assert result.status.blamed_nodes == []
    assert result.status.last_failure is not None
    assert f"({blocker}: 1)" in result.status.last_failure.log_tail


def test_a_pod_that_was_never_created_is_not_blamed_on_its_node() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    assert reconcile(one, pods_of(one)[:2], now=NOW + 60).status.blamed_nodes == []


def without_sandbox(one: TrainingJob) -> tuple[PodView, ...]:
    return tuple(replace(pod, pending_reason="Node") for pod in pods_of(one, "Pending"))


def test_a_node_that_makes_no_sandbox_within_a_minute_is_blamed_although_no_other_pod_got_ready() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    late = reconcile(one, without_sandbox(one), now=NOW + 60).status
    assert [entry.node for entry in late.blamed_nodes] == ["n0", "n1"]


def test_a_start_timeout_that_is_too_short_for_any_node_blames_none() -> None:
    one = admitted(job(startTimeoutSeconds=59))
    assert reconcile(one, without_sandbox(one), now=NOW + 59).status.blamed_nodes == []


def test_when_no_pod_gets_ready_the_job_is_at_fault_and_no_node_is_blamed() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    assert reconcile(one, pods_of(one, "Pending"), now=NOW + 60).status.blamed_nodes == []


def test_pods_that_are_ready_at_the_last_moment_are_not_late() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    assert reconcile(one, pods_of(one), now=NOW + 61).status.phase == "Running"


def timed_out(one: TrainingJob, times: int) -> TrainingJob:
    """The job after so many start timeouts in a row, once all its pods are gone."""
    now = NOW
    for _ in range(times):
        now = max(now, one.status.requeue_after or 0.0)
        if not is_admitted(one.status):
            one = with_status(one, transitions.admit(one.status, PLACEMENT, now))
        now += one.spec.start_timeout_seconds
        one = with_status(one, reconcile(one, pods_of(one, "Pending"), now=now).status)
        one = with_status(one, reconcile(one, now=now).status)
    return one


def test_a_start_timeout_queues_the_gang_again_where_no_restarts_are_allowed() -> None:
    one = timed_out(admitted(job(startTimeoutSeconds=60, failurePolicy={"maxRestarts": 0})), 1)
    assert (one.status.phase, one.status.reason) == ("Pending", "StartTimeout")
    assert (one.status.restarts, one.status.start_retries, one.status.attempt) == (0, 1, 1)
    assert one.status.requeue_after == NOW + 60 + 10


def test_start_timeouts_have_no_limit_by_default_and_a_backoff_that_doubles_up_to_its_maximum() -> None:
    one = admitted(job(startTimeoutSeconds=60, failurePolicy={"maxRestarts": 0}))
    delays = []
    for times in (1, 2, 3, 20):
        status = timed_out(one, times).status
        evicted = find_condition(status, "Evicted")
        assert evicted is not None
        assert status.requeue_after is not None
        delays.append(status.requeue_after - evicted.last_transition_time)
    assert delays == [10, 20, 40, 300]


@pytest.mark.parametrize("most", [0, 2])
def test_start_timeouts_in_a_row_end_a_job_after_max_start_retries(most: int) -> None:
    one = admitted(job(startTimeoutSeconds=60, failurePolicy={"maxStartRetries": most}))
    if most:
        assert timed_out(one, most).status.phase == "Pending"
    failed = timed_out(one, most + 1).status
    assert (failed.phase, condition(failed, "Failed")) == ("Failed", ("True", "StartTimeout"))
    assert (failed.restarts, failed.start_retries) == (0, most)


def test_a_gang_whose_pods_get_ready_has_all_its_start_retries_again() -> None:
    late = timed_out(admitted(job(startTimeoutSeconds=60, failurePolicy={"maxStartRetries": 2})), 2)
    again = with_status(late, transitions.admit(late.status, PLACEMENT, NOW + 900))
    ready = reconcile(again, pods_of(again), now=NOW + 901).status
    assert (ready.phase, ready.start_retries) == ("Running", 0)


def test_a_restart_has_its_whole_start_timeout_anew() -> None:
    one = running(job(startTimeoutSeconds=60))
    again = with_status(one, transitions.restart(one.status, "Restarting", "", NOW + 500, 10.0))
    assert created(reconcile(again, now=NOW + 510)) != []
    assert reconcile(again, now=NOW + 510).wake_at == pytest.approx(NOW + 510 + 30 + 60)


def test_an_event_tells_of_a_late_start() -> None:
    one = admitted(job(startTimeoutSeconds=60))
    assert events(reconcile(one, pods_of(one, "Pending"), now=NOW + 60)) == ["StartTimeout"]
    assert set(NODES) == {"n0", "n1", "n2"}


def test_messages_of_a_gang_of_one_pod_are_in_the_singular() -> None:
    alone = (RolePlacement("trainer", "h200", (("n0", 1),)),)
    one = admitted(job(1, startTimeoutSeconds=60), placement=alone)
    ready = find_condition(reconcile(one, pods_of(one)).status, PODS_READY)
    assert ready is not None
    assert ready.message == "the pod is ready"
    late = reconcile(one, pods_of(one, "Pending"), now=NOW + 61).status.last_failure
    assert late is not None
    assert late.log_tail == "the pod was not ready within 60 s"
