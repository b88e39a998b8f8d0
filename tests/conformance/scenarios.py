"""What must happen to a gang on every cluster, scenario by scenario. A scenario's name is the rule it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.harness import GPUS, NODES, Harness, Script, Start, job, template

from muster.api import spec
from muster.workload.conditions import find_condition

Scenario = Callable[[Harness], None]
ALL = NODES * GPUS
LONG = Script(seconds=60)
INTERRUPTED = Script(seconds=1, first=60)  # it is seen running and stopped before it ends, however slow the machine


def play(scenario: Scenario, harness: Harness) -> None:
    """Play a scenario, unless the cluster has no way to."""
    if scenario.__name__ in harness.cannot:
        pytest.skip(f"{type(harness).__name__} cannot play it")
    scenario(harness)


def a_gang_starts_together_and_completes(h: Harness) -> None:
    uid = h.submit(job("a", pods=3), Script())
    reach(h, uid, "Succeeded")
    assert sorted(h.starts(uid)) == [Start(0, "worker-0"), Start(0, "worker-1"), Start(0, "worker-2")]
    status = status_of(h, uid)
    assert status.restarts == 0
    assert status.started_at is not None
    assert status.finished_at is not None
    assert status.finished_at >= status.started_at
    assert h.live_pods(uid) == 0


def a_gang_that_lacks_capacity_waits_with_a_reason_and_starts_later(h: Harness) -> None:
    first = h.submit(job("first", pods=ALL, maxRuntimeSeconds=600), LONG)
    reach(h, first, "Running")
    second = h.submit(job("second", pods=2), Script())
    h.wait(lambda: bool(status_of(h, second).conditions))
    admitted = find_condition(status_of(h, second), "Admitted")
    assert admitted is not None
    assert admitted.status == "False"
    assert admitted.reason in ("InsufficientResources", "QuotaExceeded")
    assert h.live_pods(second) == 0
    h.edit(first, cancel=True)
    reach(h, second, "Succeeded")


def a_failed_gang_is_restarted_whole(h: Harness) -> None:
    uid = h.submit(job("a"), Script(exits=(3,)))
    reach(h, uid, "Succeeded")
    assert sorted(set(h.starts(uid))) == [Start(attempt, pod) for attempt in (0, 1) for pod in ("worker-0", "worker-1")]
    status = status_of(h, uid)
    assert (status.attempt, status.restarts) == (1, 1)
    assert status.last_failure is not None
    assert status.last_failure.exit_code == 3


def a_gang_that_keeps_failing_fails_at_its_bound(h: Harness) -> None:
    uid = h.submit(job("a", failurePolicy={"maxRestarts": 1}), Script(exits=(7, 7, 7)))
    reach(h, uid, "Failed")
    status = status_of(h, uid)
    assert status.restarts == 1
    assert {start.attempt for start in h.starts(uid)} == {0, 1}
    assert status.last_failure is not None
    assert status.last_failure.exit_code == 7
    h.wait(lambda: h.live_pods(uid) == 0)


def a_rule_by_exit_code_fails_the_job_at_once(h: Harness) -> None:
    rules = [{"onExitCodes": [42], "action": "FailJob"}]
    uid = h.submit(job("a", failurePolicy={"maxRestarts": 5, "rules": rules}), Script(exits=(42,)))
    reach(h, uid, "Failed")
    failed = find_condition(status_of(h, uid), "Failed")
    assert failed is not None
    assert failed.reason == "FailurePolicy"
    assert {start.attempt for start in h.starts(uid)} == {0}


def a_lost_pod_means_a_new_attempt_and_is_no_failure(h: Harness) -> None:
    uid = h.submit(job("a", failurePolicy={"maxRestarts": 0}), INTERRUPTED)
    started(h, uid, 2)
    h.lose_pod(uid, 1)
    reach(h, uid, "Succeeded")
    status = status_of(h, uid)
    assert (status.restarts, status.node_losses, status.attempt) == (0, 1, 1)
    assert {start.attempt for start in h.starts(uid)} == {0, 1}


def a_suspended_gang_releases_everything_and_resumes(h: Harness) -> None:
    uid = h.submit(job("a", pods=ALL), INTERRUPTED)
    reach(h, uid, "Running")
    h.edit(uid, suspend=True)
    reach(h, uid, "Suspended")
    h.wait(lambda: h.live_pods(uid) == 0)
    other = h.submit(job("other", pods=ALL), Script())
    reach(h, other, "Succeeded")
    h.edit(uid, suspend=False)
    reach(h, uid, "Succeeded")
    assert status_of(h, uid).restarts == 0


def a_cancelled_gang_stops_for_good_and_keeps_its_record(h: Harness) -> None:
    uid = h.submit(job("a"), LONG)
    reach(h, uid, "Running")
    h.edit(uid, cancel=True)
    reach(h, uid, "Cancelled")
    assert h.live_pods(uid) == 0, "until the last process has ended, the job is Terminating"
    cancelled = find_condition(status_of(h, uid), "Cancelled")
    assert cancelled is not None
    assert (cancelled.status, cancelled.reason) == ("True", "Cancelled")
    assert find_condition(status_of(h, uid), "Failed") is None
    assert {start.attempt for start in h.starts(uid)} <= {0}  # the signal may come before its first line


def a_job_can_be_cancelled_while_it_waits(h: Harness) -> None:
    first = h.submit(job("first", pods=ALL), LONG)
    reach(h, first, "Running")
    uid = h.submit(job("second"), Script())
    h.wait(lambda: bool(status_of(h, uid).conditions))
    h.edit(uid, cancel=True)
    reach(h, uid, "Cancelled")
    assert h.starts(uid) == []
    h.edit(first, cancel=True)


def a_deleted_job_goes_with_its_pods(h: Harness) -> None:
    uid = h.submit(job("a"), LONG)
    reach(h, uid, "Running")
    h.delete(uid)
    h.wait(lambda: h.job(uid) is None)
    assert h.live_pods(uid) == 0


def a_higher_priority_preempts_and_the_victim_resumes(h: Harness) -> None:
    low = h.submit(job("low", pods=ALL), INTERRUPTED)
    started(h, low, ALL)
    high = h.submit(job("high", pods=2, gpus=2, priority=10), Script(seconds=0.5))
    reach(h, high, "Succeeded")
    reach(h, low, "Succeeded")
    status = status_of(h, low)
    assert (status.restarts, status.node_losses) == (0, 0)
    assert {start.attempt for start in h.starts(low)} == {0, 1}
    assert {start.attempt for start in h.starts(high)} == {0}


def a_guarantee_is_reclaimed_from_who_borrowed_it(h: Harness) -> None:
    one = h.submit(job("one", pods=2), INTERRUPTED)
    two = h.submit(job("two", pods=2), INTERRUPTED)
    started(h, one, 2)
    started(h, two, 2)
    owner = h.submit(job("owner", pods=2, queue="blue"), Script(seconds=0.5))
    reach(h, owner, "Succeeded")
    h.wait(lambda: sorted(status_of(h, uid).attempt for uid in (one, two)) == [0, 1])
    stayed, left = sorted((one, two), key=lambda uid: status_of(h, uid).attempt)
    reach(h, left, "Succeeded")
    assert [status_of(h, uid).restarts for uid in (one, two)] == [0, 0]
    assert (status_of(h, stayed).attempt, status_of(h, left).attempt) == (0, 1), "one was enough"
    h.edit(stayed, cancel=True)


def max_runtime_ends_a_job(h: Harness) -> None:
    uid = h.submit(job("a", maxRuntimeSeconds=1), LONG)
    reach(h, uid, "Failed")
    failed = find_condition(status_of(h, uid), "Failed")
    assert failed is not None
    assert failed.reason == "MaxRuntimeExceeded"
    h.wait(lambda: h.live_pods(uid) == 0)


def a_gang_that_is_not_ready_in_time_is_torn_down_and_queued_again(h: Harness) -> None:
    uid = h.submit(job("a", startTimeoutSeconds=10, failurePolicy={"maxRestarts": 0}), Script(stuck=(0,)))
    reach(h, uid, "Succeeded")
    status = status_of(h, uid)
    assert (status.attempt, status.restarts) == (1, 0)
    assert status.last_failure is not None
    assert status.last_failure.reason == "StartTimeout"


def an_elastic_gang_shrinks_before_anyone_is_evicted(h: Harness) -> None:
    wide = h.submit(job("wide", pods=ALL, least=1), INTERRUPTED)
    reach(h, wide, "Running")
    assert status_of(h, wide).pods_wanted == ALL
    high = h.submit(job("high", pods=2, priority=10), LONG)
    reach(h, high, "Running")
    h.wait(lambda: status_of(h, wide).attempt >= 1)
    assert status_of(h, wide).pods_wanted < ALL
    h.edit(high, cancel=True)
    reach(h, wide, "Succeeded")
    status = status_of(h, wide)
    assert (status.restarts, status.node_losses) == (0, 0)


def others_are_stopped_once_the_essential_pods_are_done(h: Harness) -> None:
    roles = [
        {"name": "worker", "replicas": 1, "template": template(1)},
        {"name": "server", "replicas": 1, "essential": False, "template": template(1)},
    ]
    uid = h.submit(job("a", roles=roles), Script(seconds=0.5, endless=("server",)))
    reach(h, uid, "Succeeded")
    h.wait(lambda: h.live_pods(uid) == 0)


SCENARIOS: tuple[Scenario, ...] = (
    a_gang_starts_together_and_completes,
    a_gang_that_lacks_capacity_waits_with_a_reason_and_starts_later,
    a_failed_gang_is_restarted_whole,
    a_gang_that_keeps_failing_fails_at_its_bound,
    a_rule_by_exit_code_fails_the_job_at_once,
    a_lost_pod_means_a_new_attempt_and_is_no_failure,
    a_suspended_gang_releases_everything_and_resumes,
    a_cancelled_gang_stops_for_good_and_keeps_its_record,
    a_job_can_be_cancelled_while_it_waits,
    a_deleted_job_goes_with_its_pods,
    a_higher_priority_preempts_and_the_victim_resumes,
    a_guarantee_is_reclaimed_from_who_borrowed_it,
    max_runtime_ends_a_job,
    a_gang_that_is_not_ready_in_time_is_torn_down_and_queued_again,
    an_elastic_gang_shrinks_before_anyone_is_evicted,
    others_are_stopped_once_the_essential_pods_are_done,
)


def reach(h: Harness, uid: str, phase: str) -> None:
    """Wait for a phase. A phase that no way leads out of any more ends the wait."""
    ends = {phase, "Succeeded", "Failed", "Cancelled"}
    h.wait(lambda: status_of(h, uid).phase in ends)
    assert status_of(h, uid).phase == phase, status_of(h, uid)


def started(h: Harness, uid: str, pods: int) -> None:
    """Wait until the job is Running and this many of its pods have begun to do something: that comes later."""
    reach(h, uid, "Running")
    h.wait(lambda: len(h.starts(uid)) >= pods)


def status_of(h: Harness, uid: str) -> spec.TrainingJobStatus:
    """The job's status now."""
    found = h.job(uid)
    assert found is not None, f"job {uid} is gone"
    return found.status
