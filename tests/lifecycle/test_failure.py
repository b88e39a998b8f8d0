from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.lifecycle.cases import (
    BOUNDS,
    NODES,
    NOW,
    admitted,
    condition,
    created,
    deleted,
    events,
    failed,
    job,
    pods_of,
    reconcile,
    reconcile_job,
    running,
    with_status,
)  # fmt: skip

from muster.cluster import DRAIN_TAINT, DeletePod
from muster.model import NodeTaint
from muster.workload.conditions import find_condition, with_status_fields
from muster.workload.observation import Observation
from muster.workload.timeouts import Timeouts


def test_the_cause_is_the_earliest_failing_container_and_is_kept_before_teardown() -> None:
    one = running()
    pods = pods_of(one)
    broken = (failed(pods[0], 134, NOW + 3), failed(pods[1], 42, NOW + 2, log="assert\n" * 2000), pods[2])
    result = reconcile(one, broken, now=NOW + 4)
    failure = result.status.last_failure
    assert failure is not None
    assert (failure.pod, failure.node, failure.exit_code, failure.at) == (pods[1].name, "n0", 42, NOW + 2)
    assert len(failure.log_tail.encode()) <= 4096
    assert failure.log_tail.endswith("assert\n")
    assert deleted(result) == [pod.name for pod in pods]


def test_the_cause_is_the_pod_whose_rank_failed_first_though_its_victims_end_before_it() -> None:
    one = running(job(failurePolicy={"rules": [{"onExitCodes": [42], "action": "FailJob"}]}))
    first, second, third = pods_of(one)
    victim = replace(failed(first, 1, NOW + 3), failed_at=NOW + 2.5)
    source = replace(second, exit_code=42, failed_at=NOW + 2, reason="Error", log_tail="the reason\n")
    assert reconcile(one, (first, source, third), now=NOW + 4).status.last_failure is None, "nothing has ended yet"
    for cause in (source, failed(source, 42, NOW + 9)):
        result = reconcile(one, (victim, cause, third), now=NOW + 9)
        failure = result.status.last_failure
        assert failure is not None
        assert (failure.pod, failure.exit_code, failure.at) == (second.name, 42, NOW + 2)
        assert condition(result.status, "Failed")[1] == "FailurePolicy"


@pytest.mark.parametrize(
    ("rules", "code", "phase"),
    [
        (None, 2, "Failed"),
        (None, 78, "Failed"),
        (None, 127, "Failed"),
        (None, 1, "Admitted"),
        ([], 2, "Admitted"),
    ],
)
def test_exit_codes_of_a_command_that_cannot_work_fail_the_job_unless_it_has_rules_of_its_own(
    rules: list[Any] | None, code: int, phase: str
) -> None:
    one = running(job(failurePolicy={} if rules is None else {"rules": rules}))
    first, *others = pods_of(one)
    assert reconcile(one, (failed(first, code), *others), now=NOW + 4).status.phase == phase


def test_a_restart_stays_on_its_nodes_and_waits_for_its_backoff() -> None:
    one = running()
    result = reconcile(one, (failed(pods_of(one)[0]), *pods_of(one)[1:]), now=NOW + 4)
    assert (result.status.attempt, result.status.restarts) == (1, 1)
    assert result.status.placement == one.status.placement
    assert result.status.admitted_at == one.status.admitted_at
    assert result.status.started_at is None
    again = with_status(one, result.status)
    waiting = reconcile(again, now=NOW + 5)
    assert (created(waiting), waiting.wake_at) == ([], NOW + 14)
    assert len(created(reconcile(again, now=NOW + 14))) == 3


@pytest.mark.parametrize(
    ("code", "restarts", "wait_s"),
    [(137, 0, 0), (139, 0, 0), (129, 0, 0), (137, 1, 20), (1, 0, 10), (128, 0, 10), (255, 0, 10)],
)
def test_only_the_first_restart_after_a_death_by_signal_does_not_wait(code: int, restarts: int, wait_s: int) -> None:
    one = running()
    one = with_status(one, with_status_fields(one.status, {"restarts": restarts}))
    first, *others = pods_of(one)
    result = reconcile(one, (failed(first, code), *others), now=NOW + 4)
    assert (result.status.attempt, result.status.restarts) == (1, restarts + 1)
    assert result.status.requeue_after == NOW + 4 + wait_s
    again = with_status(one, result.status)
    assert len(created(reconcile(again, now=NOW + 4 + wait_s))) == 3
    if wait_s:
        assert created(reconcile(again, now=NOW + 3 + wait_s)) == []


def test_backoff_doubles_and_is_bounded() -> None:
    bounds = Timeouts(backoff_s=10, backoff_max_s=300)
    assert [bounds.backoff(n) for n in (0, 1, 2, 3, 6, 10_000)] == [0, 10, 20, 40, 300, 300]


def test_restarts_are_bounded() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    result = reconcile(one, (failed(pods_of(one)[0], 7), *pods_of(one)[1:]))
    assert result.status.phase == "Failed"
    assert condition(result.status, "Failed") == ("True", "TooManyRestarts")
    assert deleted(result) == [pod.name for pod in pods_of(one)[1:]], "ended pods stay for their logs"
    assert result.status.finished_at is None, "the others still stop"
    failed_condition = find_condition(result.status, "Failed")
    assert failed_condition is not None
    assert failed_condition.message.endswith("; no restarts are allowed (maxRestarts is 0)")


RULES = [
    {"onExitCodes": [42], "action": "FailJob"},
    {"onPodConditions": ["OOMKilled"], "action": "RestartElsewhere"},
    {"onExitCodes": [42, 137], "action": "RestartGang"},
]


@pytest.mark.parametrize(
    ("code", "reason", "end"),
    [
        (42, "Error", ("Failed", "FailurePolicy")),
        (137, "OOMKilled", ("Evicted", "RestartElsewhere")),
        (137, "Error", ("PodsReady", "Restarting")),
        (1, "Error", ("PodsReady", "Restarting")),
    ],
)
def test_the_first_rule_that_matches_decides(code: int, reason: str, end: tuple[str, str]) -> None:
    one = running(job(failurePolicy={"rules": RULES}))
    result = reconcile(one, (failed(pods_of(one)[0], code, reason=reason), *pods_of(one)[1:]))
    assert condition(result.status, end[0])[1] == end[1]


def test_restart_elsewhere_blames_the_node_and_keeps_the_others_under_a_nomination() -> None:
    one = running(job(failurePolicy={"rules": RULES}))
    result = reconcile(one, (failed(pods_of(one)[0], 137, reason="OOMKilled"), *pods_of(one)[1:]))
    assert [entry.node for entry in result.status.blamed_nodes] == ["n0"]
    gone = reconcile(with_status(one, result.status), now=NOW + 1).status
    assert gone.phase == "Pending"
    assert gone.nomination is not None
    assert [share.node for part in gone.nomination.placement for share in part.nodes] == ["n1"]
    assert gone.requeue_after == NOW + 11


def test_capacity_retained_over_a_backoff_is_nominated_until_the_start_timeout() -> None:
    patient = Timeouts(backoff_s=300)  # longer than grace and start timeout together
    one = running(job(grace=5, startTimeoutSeconds=60, failurePolicy={"rules": RULES}))
    pods = (failed(pods_of(one)[0], 137, reason="OOMKilled"), *pods_of(one)[1:])
    evicted = with_status(one, reconcile_job(one, Observation(NOW, pods, None, NODES), patient).status)
    gone = reconcile_job(evicted, Observation(NOW, (), None, NODES), patient).status
    assert (gone.requeue_after, gone.nomination is not None and gone.nomination.expires_at) == (
        NOW + 300,
        NOW + 300 + 65,
    )
    waiting = reconcile_job(with_status(one, gone), Observation(NOW + 299, (), None, NODES), patient)
    assert (waiting.status.nomination, events(waiting)) == (gone.nomination, [])


def test_a_gang_on_a_cordoned_node_restarts_elsewhere_and_excludes_no_node() -> None:
    one = running()
    drained = {**NODES, "n1": replace(NODES["n1"], cordoned=True)}
    result = reconcile(one, (failed(pods_of(one)[0]), *pods_of(one)[1:]), nodes=drained)
    assert condition(result.status, "Evicted") == ("True", "RestartElsewhere")
    assert result.status.blamed_nodes == []
    gone = reconcile(with_status(one, result.status), nodes=drained).status
    assert gone.nomination is not None
    assert [share.node for part in gone.nomination.placement for share in part.nodes] == ["n0"]


def test_a_gang_leaves_a_node_that_is_drained_and_keeps_the_others() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    drained = {**NODES, "n1": replace(NODES["n1"], taints=(NodeTaint(DRAIN_TAINT),))}
    result = reconcile(one, pods_of(one), nodes=drained)
    assert condition(result.status, "Evicted") == ("True", "Drained")
    assert deleted(result) == [pod.name for pod in pods_of(one)], "with their grace: they write a checkpoint"
    assert events(result) == ["Drained"]
    gone = reconcile(with_status(one, result.status), nodes=drained).status
    assert (gone.attempt, gone.restarts, gone.node_losses, gone.last_failure) == (1, 0, 0, None)
    assert (gone.blamed_nodes, gone.requeue_after) == ([], None)
    assert gone.nomination is not None
    assert [share.node for part in gone.nomination.placement for share in part.nodes] == ["n0"]


def test_a_drained_node_under_a_failed_gang_is_still_a_failure() -> None:
    one = running()
    drained = {**NODES, "n1": replace(NODES["n1"], taints=(NodeTaint(DRAIN_TAINT),))}
    status = reconcile(one, (failed(pods_of(one)[0]), *pods_of(one)[1:]), nodes=drained).status
    assert (status.restarts, condition(status, "Evicted")) == (1, ("True", "RestartElsewhere"))


def test_a_lost_pod_is_a_new_attempt_and_never_a_failure() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    pods = pods_of(one)
    result = reconcile(one, (replace(pods[0], phase="Lost"), *pods[1:]))
    assert condition(result.status, "Evicted") == ("True", "PodLost")
    assert (result.status.restarts, result.status.node_losses, result.status.last_failure) == (0, 1, None)
    gone = reconcile(with_status(one, result.status), now=NOW + 1).status
    assert gone.attempt == 1
    assert gone.nomination is not None, "all nodes are good and kept"
    assert gone.nomination.placement == one.status.placement
    assert gone.requeue_after is None


def test_a_pod_that_vanished_from_a_running_gang_is_lost() -> None:
    one = running()
    assert condition(reconcile(one, pods_of(one)[:2]).status, "Evicted") == ("True", "PodLost")


def test_a_pod_that_a_user_deletes_is_lost() -> None:
    one = running()
    pods = pods_of(one)
    assert condition(reconcile(one, (replace(pods[0], deleting=True), *pods[1:])).status, "Evicted")[1] == "PodLost"


def test_failing_because_a_peers_node_vanished_is_no_failure() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    pods = pods_of(one)
    not_ready = {**NODES, "n1": replace(NODES["n1"], ready=False, not_ready_since=NOW - 1)}
    result = reconcile(one, (failed(pods[0], 134), *pods[1:]), nodes=not_ready)
    assert condition(result.status, "Evicted") == ("True", "NodeLost")
    assert result.status.restarts == 0


def test_a_deleted_node_is_lost_at_once_and_the_others_are_kept() -> None:
    one = running()
    left = {name: view for name, view in NODES.items() if name != "n1"}
    result = reconcile(one, pods_of(one), nodes=left)
    assert condition(result.status, "Evicted") == ("True", "NodeLost")
    forced = {action.name: action.force for action in result.writes if isinstance(action, DeletePod)}
    assert list(forced.values()) == [False, False, True]
    gone = reconcile(with_status(one, result.status), nodes=left).status
    assert gone.nomination is not None
    assert [share.node for part in gone.nomination.placement for share in part.nodes] == ["n0"]
    assert gone.nomination.expires_at == NOW + 30 + 600


def test_an_unknown_node_is_lost_after_300_seconds_and_not_before() -> None:
    one = running()
    silent = {**NODES, "n1": replace(NODES["n1"], ready=False, not_ready_since=NOW)}
    result = reconcile(one, pods_of(one), now=NOW + 299, nodes=silent)
    assert result.status.phase == "Running"
    assert condition(reconcile(one, pods_of(one), now=NOW + 300, nodes=silent).status, "Evicted")[1] == "NodeLost"


def test_pods_on_an_unknown_node_are_force_deleted_only_when_it_is_lost() -> None:
    one = running()
    silent = {**NODES, "n1": replace(NODES["n1"], ready=False, not_ready_since=NOW)}
    pods = pods_of(one)
    lost = (*pods[:2], replace(pods[2], phase="Lost"))
    result = reconcile(one, lost, now=NOW + 50, nodes=silent)
    assert [action.force for action in result.writes if isinstance(action, DeletePod)] == [False, False, False]
    stuck = (replace(lost[2], deleting=True),)
    assert result.wake_at is not None
    late = reconcile(with_status(one, result.status), stuck, now=result.wake_at, nodes=silent)
    assert [action.force for action in late.writes if isinstance(action, DeletePod)] == []
    assert late.wake_at == NOW + 300
    later = reconcile(with_status(one, late.status), stuck, now=NOW + 300, nodes=silent)
    assert [action.force for action in later.writes if isinstance(action, DeletePod)] == [True]


def test_an_out_of_service_node_is_lost_at_once() -> None:
    one = running()
    out = {
        **NODES,
        "n0": replace(NODES["n0"], taints=(NodeTaint("node.kubernetes.io/out-of-service", effect="NoExecute"),)),
    }
    assert condition(reconcile(one, pods_of(one), nodes=out).status, "Evicted")[1] == "NodeLost"


def test_node_losses_have_their_own_bound() -> None:
    one = running()
    one = with_status(one, one.status.model_copy(update={"node_losses": BOUNDS.max_node_losses}))
    result = reconcile(one, pods_of(one)[:2])
    assert condition(result.status, "Failed") == ("True", "TooManyNodeLosses")


@pytest.mark.parametrize("reason", ["Preempting", "NodeShutdown", "DisruptionTarget"])
def test_a_pod_that_another_component_ends_is_a_loss_with_its_cause_and_excludes_no_node(reason: str) -> None:
    one = admitted()
    pods = pods_of(one, "Pending")
    ended = replace(failed(pods[0], None, reason=reason), message="deleting due to NoExecute taint")
    result = reconcile(one, (ended, *pods[1:]))
    evicted = find_condition(result.status, "Evicted")
    assert evicted is not None
    assert (evicted.reason, evicted.message) == (
        "PodLost",
        f"lost pod {pods[0].name} on n0 ({reason}: deleting due to NoExecute taint)",
    )
    assert (result.status.restarts, result.status.blamed_nodes) == (0, [])


def test_losses_back_off_from_the_second_on() -> None:
    one, waits = running(), []
    for losses in range(BOUNDS.max_node_losses):
        lossy = with_status(one, one.status.model_copy(update={"node_losses": losses}))
        evicted = reconcile(lossy, pods_of(lossy)[:2])
        gone = reconcile(with_status(lossy, evicted.status)).status
        waits.append(0 if gone.requeue_after is None else gone.requeue_after - NOW)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300, 300]
