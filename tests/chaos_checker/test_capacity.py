"""A violation is reported when an admission exceeds quota or its nodes, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chaos_checker.history import History

QUOTA = "admitted within quota"
ASSIGNED = "no node is assigned beyond its capacity"
OVER = "no node over its allocatable"


def teams() -> History:
    """Two queues with 4 of the 8 GPUs each; they may borrow from each other."""
    history = History()
    history.queue("red", parent="root", guaranteed=4)
    history.queue("blue", parent="root", guaranteed=4)
    history.wait(15)
    return history


def test_borrowing_what_is_idle_is_within_quota() -> None:
    history = teams()
    history.running("a", "n0", "n1", queue="red", gpus=4)
    assert history.rules == []


def test_more_than_the_tree_has() -> None:
    history = teams()
    history.running("a", "n0", queue="red", gpus=4)
    history.node("n2", 4)
    history.running("b", "n1", queue="blue", gpus=4)
    history.running("c", "n2", queue="red", gpus=1)
    assert history.rules == [QUOTA]
    assert "queue red has 0 left" in history.violations[0].message


def test_more_than_a_limit() -> None:
    history = History()
    history.queue("red", parent="root", guaranteed=1, limit=2)
    history.wait(15)
    history.running("a", "n0", "n0", "n1", queue="red")
    assert history.rules == [QUOTA]


def test_a_queue_that_is_missing_admits_nothing() -> None:
    history = History()
    history.running("a", "n0", queue="missing")
    assert history.rules == [QUOTA]


@pytest.mark.parametrize(("wait_s", "rules"), [(0, [QUOTA]), (6, [])])
def test_nominated_capacity_is_charged_to_the_nominated_job_until_it_expires(wait_s: float, rules: list[str]) -> None:
    history = teams()
    history.job("first", queue="red", gpus=4)
    history.nominate("first", "n0", "n1", seconds=5)
    history.wait(wait_s)
    history.running("second", "n0", queue="blue", gpus=1)
    assert history.rules == rules


@pytest.mark.parametrize(("nodes", "rules"), [(("n0",), []), (("n0", "n1"), [QUOTA])])
@pytest.mark.parametrize("victim", [True, False])
def test_of_nominated_capacity_only_what_an_evicted_job_does_not_use_is_charged(
    nodes: tuple[str, ...], rules: list[str], *, victim: bool
) -> None:
    """The evicted job is a victim of the nomination, or restarts for another reason."""
    history = teams()
    history.running("evicted", "n0", queue="blue", gpus=4)
    history.job("high", queue="red", gpus=4)
    if victim:
        history.nominate("high", *nodes, victims=("evicted",))
        history.status("evicted", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    else:
        history.status("evicted", "Admitted", "Evicted", placement=["n0"])
        history.nominate("high", *nodes, preempts=True)
    history.running("other", "n1", queue="blue", gpus=4)
    assert history.rules == rules


def test_capacity_of_an_evicted_job_is_charged_while_its_pods_exist() -> None:
    history = teams()
    history.running("restarts", "n0", "n1", queue="blue", gpus=4)
    history.status("restarts", "Admitted", "Evicted", placement=["n0", "n1"])
    history.node("n2", 4)
    history.running("other", "n2", queue="blue", gpus=4)
    assert history.rules == [QUOTA]


def test_its_own_nomination_is_not_charged_to_the_gang_that_starts() -> None:
    history = teams()
    history.job("a", queue="red", gpus=4)
    history.nominate("a", "n0", "n1")
    history.admit("a", "n0", "n1")
    assert history.rules == []


@pytest.mark.parametrize(("stopped", "rules"), [(False, [QUOTA]), (True, [])])
def test_pods_are_charged_until_they_have_stopped(rules: list[str], *, stopped: bool) -> None:
    history = teams()
    history.queue("red", parent="root", guaranteed=4, limit=4)
    history.wait(15)
    (key,) = history.running("a", "n0", queue="red", gpus=4)
    history.status("a", "Failed", placement=["n0"])
    history.stop(key)
    if stopped:
        history.remove("Pod", key)
    history.running("b", "n1", queue="red", gpus=4)
    assert history.rules == rules


@pytest.mark.parametrize(("seconds", "rules"), [(5, []), (15, [QUOTA])])
def test_a_quota_that_was_lowered_counts_once_it_must_be_known(seconds: float, rules: list[str]) -> None:
    history = History()
    history.job("a", gpus=4)
    history.queue("root", guaranteed=1)
    history.wait(seconds)
    history.admit("a", "n0")
    assert history.rules == rules


def test_a_quota_that_is_lowered_evicts_no_gang() -> None:
    history = History()
    history.running("a", "n0", "n0")
    history.queue("root", guaranteed=1)
    history.wait(15)
    history.status("a", "Admitted", "PodsReady", placement=["n0", "n0"], lastCheckpoint={"step": 1})
    assert history.rules == []


def test_a_gang_may_shrink_in_a_quota_that_is_too_small_for_it() -> None:
    history = History()
    history.running("a", "n0", "n0", "n0")
    history.queue("root", guaranteed=1)
    history.wait(15)
    history.admit("a", "n0", "n0", attempt=1)
    assert history.rules == []


def test_two_gangs_on_the_same_capacity_before_any_pod() -> None:
    history = History()
    history.job("a", gpus=3)
    history.job("b", gpus=2)
    history.admit("a", "n0")
    history.admit("b", "n0")
    assert history.rules == [ASSIGNED]


def test_a_gang_on_capacity_that_a_stopping_pod_still_uses() -> None:
    history = History()
    (key,) = history.running("a", "n0", gpus=4)
    history.status("a", attempt=1)
    history.stop(key)
    history.job("b", gpus=4)
    history.admit("b", "n0")
    assert history.rules == [ASSIGNED]


def test_an_unmanaged_pod_that_has_existed_for_long() -> None:
    history = History()
    history.bind(history.unmanaged("daemon", 2), "n0")
    history.wait(15)
    history.job("a", gpus=3)
    history.admit("a", "n0")
    assert history.rules == [ASSIGNED]


def test_a_gang_may_be_on_a_full_node_if_it_requests_nothing_there() -> None:
    history = History()
    history.job("between-two-attempts", gpus=4)
    history.admit("between-two-attempts", "n0")
    history.bind(history.unmanaged("unmanaged", 1), "n0")
    history.wait(15, leads=False)
    history.job("b", gpus=0)
    history.admit("b", "n0")
    assert history.rules == []
    history.job("c", gpus=1)
    history.admit("c", "n0")
    assert history.rules == [ASSIGNED]


def test_an_unmanaged_pod_bound_a_moment_ago_may_have_been_unknown() -> None:
    history = History()
    history.bind(history.unmanaged("daemon", 2), "n0")
    history.wait(5)
    history.job("a", gpus=3)
    history.admit("a", "n0")
    assert history.rules == []


def test_more_bound_pods_than_a_node_has_capacity_for() -> None:
    history = History()
    history.bind(history.unmanaged("one", 3), "n0")
    history.bind(history.unmanaged("two", 2), "n0")
    assert history.rules == [OVER]


def test_ended_pods_use_nothing() -> None:
    history = History()
    one = history.unmanaged("one", 3)
    history.bind(one, "n0")
    history.phase(one, "Succeeded")
    history.bind(history.unmanaged("two", 2), "n0")
    assert history.rules == []


def test_a_pod_that_has_ended_uses_nothing_though_a_late_write_says_that_it_runs() -> None:
    history = History()
    one = history.unmanaged("one", 3)
    history.bind(one, "n0")
    history.phase(one, "Failed")
    history.phase(one, "Running")
    history.bind(history.unmanaged("two", 3), "n0")
    assert history.rules == []
    history.bind(history.unmanaged("three", 2), "n0")
    assert history.rules == [OVER]


@pytest.mark.parametrize("orphaned", [False, True])
def test_pods_of_a_removed_job_are_charged_until_they_have_ended(orphaned: bool) -> None:
    history = History(nodes=2, gpus=4)
    history.queue("small", guaranteed=4)
    history.wait(15)
    (key,) = history.running("gone", "n0", queue="small", gpus=4)
    if orphaned:
        history.orphan(key)
    history.remove("TrainingJob", "ns/gone")
    history.running("early", "n1", queue="small", gpus=1)
    assert history.rules == [QUOTA]
    assert "ns/gone (small, Running): 4" in history.violations[0].message
    history.phase(key, "Failed")
    history.running("later", "n0", queue="small", gpus=1)
    assert history.rules == [QUOTA]


@pytest.mark.parametrize("recorded", [True, False])
def test_the_slot_of_a_completed_pod_is_free_while_others_run(*, recorded: bool) -> None:
    history = teams()
    first, _ = history.running("a", "n0", "n1", queue="red", gpus=4)
    history.phase(first, "Succeeded")
    if recorded:
        finished = [{"role": "w", "indexes": "0"}]
        history.status("a", "Admitted", "PodsReady", placement=["n0", "n1"], finishedPods=finished)
        history.stop(first)
        history.remove("Pod", first)
    history.running("next", "n0", queue="blue", gpus=4)
    assert history.rules == []


BLAME = {"node": "n0", "reason": "PodRejected", "at": "2001-09-09T01:46:40Z", "until": "2001-09-09T02:46:40Z"}


def evicted(reason: str, *, ended: str = "", **status: Any) -> History:
    """A gang on both nodes of which no pod is left, evicted for this reason; the pod on the first node had succeeded by
    itself, `before` or `after` the eviction."""
    history = teams()
    first, second = history.running("a", "n0", "n1", queue="red", gpus=4)
    if ended == "before":
        history.phase(first, "Succeeded")
        status["finishedPods"] = [{"role": "w", "indexes": "0"}]
    conditions = [{"type": "Admitted", "status": "True"}, {"type": "Evicted", "status": "True", "reason": reason}]
    history.status("a", phase="Admitted", placement=["n0", "n1"], conditions=conditions, **status)
    if ended == "after":
        history.phase(first, "Succeeded")
    for key in (first, second):
        history.stop(key)
        history.remove("Pod", key)
    return history


@pytest.mark.parametrize("reason", ["NodeLost", "PodLost", "PodRejected", "RestartElsewhere", "Drained"])
@pytest.mark.parametrize("ended", ["", "after"])
def test_an_evicted_gang_that_restarts_on_its_nodes_holds_them_until_it_is_queued_again(
    reason: str, ended: str
) -> None:
    history = evicted(reason, ended=ended)
    history.running("b", "n0", queue="blue", gpus=4)
    assert ASSIGNED in history.rules


@pytest.mark.parametrize("reason", ["Preempted", "Reclaimed", "StartTimeout", "Edited"])
def test_an_evicted_gang_that_restarts_elsewhere_holds_what_its_pods_use(reason: str) -> None:
    history = evicted(reason)
    history.running("b", "n0", "n1", queue="blue", gpus=4)
    assert history.rules == []


def test_a_gang_that_restarts_holds_neither_nodes_that_it_blames_nor_those_of_pods_that_had_completed() -> None:
    for history in (evicted("PodRejected", blamedNodes=[BLAME]), evicted("PodLost", ended="before")):
        history.running("b", "n0", queue="blue", gpus=4)
        assert history.rules == []
        history.running("c", "n1", queue="blue", gpus=1)
        assert ASSIGNED in history.rules


def test_the_slot_of_a_running_pod_is_not_free() -> None:
    history = teams()
    history.running("a", "n0", "n1", queue="red", gpus=4)
    history.running("next", "n0", queue="blue", gpus=4)
    assert QUOTA in history.rules
