"""A gang of one pod may be admitted by its pod: the judge holds that to what it holds a written admission to."""

from __future__ import annotations

import pytest
from tests.judge.history import History

BORN = "no pod before its admission"
WITHIN = "live pods are within the placement"
QUOTA = "admitted within quota"
TWICE = "no node is booked twice"
EQUAL = "status equals pods"
STOPPED = "a pod is stopped after it is written why"


def told(*nodes: str, **pod: int) -> tuple[History, str]:
    """A job that its pod has admitted to the first of these nodes, and the key of the pod."""
    history = History()
    history.job("a", gpus=pod.get("gpus", 1))
    return history, history.telling("a", nodes[0] if nodes else "n0", **pod)


def test_a_pod_tells_first_and_the_status_follows() -> None:
    history, key = told()
    history.bind(key, "n0")
    history.phase(key, "Running", ready=True)
    history.wait(5)
    history.status("a", "Admitted", "PodsReady", places=["n0"])
    history.wait(30)
    history.phase(key, "Succeeded")
    history.status("a", "Complete", places=["n0"])
    history.wait(30)
    history.end()
    assert history.violations == []


def test_the_status_may_say_the_end_at_once() -> None:
    history, key = told()
    history.phase(key, "Succeeded")
    history.status("a", "Complete", places=["n0"])
    history.wait(30)
    assert history.rules == []


def test_it_is_beyond_quota() -> None:
    history = History()
    history.queue("red", parent="root", limit=2)
    history.wait(15)
    history.running("first", "n0", queue="red", gpus=2)
    history.job("a", queue="red")
    history.telling("a", "n1")
    assert history.rules == [QUOTA]


def test_another_one_is_beyond_quota_because_of_it() -> None:
    for by_status in (False, True):
        history = History()
        history.queue("red", parent="root", limit=4)
        history.wait(15)
        history.job("a", queue="red", gpus=4)
        history.telling("a", "n0", gpus=4)
        history.job("b", queue="red")
        if by_status:
            history.admit("b", "n1")
        else:
            history.telling("b", "n1")
        assert history.rules == [QUOTA]


def test_its_status_takes_no_quota_a_second_time() -> None:
    history, _ = told(gpus=4)
    history.queue("root", guaranteed=1)
    history.wait(11)
    history.admit("a", "n0")
    assert EQUAL in history.rules  # nobody wrote it for 11 s
    assert QUOTA not in history.rules


def test_the_node_is_full() -> None:
    history = History()
    history.running("first", "n0", gpus=4)
    history.job("a")
    history.telling("a", "n0")
    assert history.rules == [TWICE]


def test_others_find_the_node_full() -> None:
    for by_status in (False, True):
        history, _ = told(gpus=4)
        history.job("b")
        if by_status:
            history.admit("b", "n0")
        else:
            history.telling("b", "n0")
        assert history.rules == [TWICE]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_gang_of_several_pods_is_not_admitted_so(replicas: int) -> None:
    history = History()
    history.job("a", replicas=replicas)
    history.telling("a", "n0")
    assert history.rules == [BORN]
    assert "no gang of one pod" in history.violations[0].message


def test_an_elastic_gang_may_begin_with_one_pod() -> None:
    history = History()
    history.job("a", replicas=3, minReplicas=1)
    history.telling("a", "n0")
    assert history.rules == []
    history.telling("a", "n0", index=1)
    assert history.rules == [BORN]


def test_a_job_that_capacity_is_held_for_is_not_admitted_so() -> None:
    history = History()
    history.job("a")
    history.hold("a", "n0")
    history.telling("a", "n0")
    assert history.rules == [BORN]


def test_a_job_that_is_over_or_suspended_or_at_another_attempt_is_not() -> None:
    for condition, attempt in (("Failed", 0), ("Cancelled", 0), ("Complete", 0), ("Suspended", 0), ("", 1)):
        history = History()
        history.job("a")
        history.status("a", *([condition] if condition else []), attempt=attempt)
        history.telling("a", "n0")
        assert history.rules == [BORN]


def test_what_is_said_later_admits_no_gang() -> None:
    history = History()
    history.job("a")
    key = history.pod("a", 0, "n0")
    body = history._last["Pod", key]
    annotations = {"muster.dev/admitted": '{"at": 1, "flavor": "any", "generation": 1, "seal": "x"}'}
    history.put("Pod", key, {**body, "metadata": {**body["metadata"], "annotations": annotations}})
    history.status("a")
    assert history.rules == [BORN, WITHIN]


@pytest.mark.parametrize("text", ["{", "[]", '{"at": 1}', '{"flavor": "", "generation": 1}'])
def test_what_makes_no_sense_admits_no_gang(text: str) -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0", told=text)
    assert history.rules == [BORN]


def test_a_pod_without_a_pin_admits_no_gang() -> None:
    history, _ = told("")
    assert history.rules == [BORN]


def test_a_status_that_says_another_node_than_the_pod() -> None:
    history, _ = told()
    history.admit("a", "n1")
    assert history.rules == [WITHIN]


def test_a_status_that_says_another_node_than_a_pod_that_has_ended() -> None:
    history, key = told()
    history.phase(key, "Succeeded")
    history.status("a", "Complete", places=["n1"])
    assert history.rules == [WITHIN]


def test_a_status_that_queues_it_again_with_its_pod_alive() -> None:
    history, _ = told()
    history.status("a", "Suspended")
    assert history.rules == [WITHIN]


def test_another_status_that_leaves_it_to_the_pod_is_no_news() -> None:
    history, _ = told(gpus=4)
    history.status("a", conditions=[{"type": "Admitted", "status": "False", "reason": "InsufficientResources"}])
    history.job("b")
    history.telling("b", "n0")
    assert history.rules == [TWICE]


def test_its_pod_is_stopped_before_it_is_written_why() -> None:
    history, key = told()
    history.stop(key)
    assert history.rules == [STOPPED]
    history, key = told()
    history.drop("Pod", key)
    assert history.rules == [STOPPED]


def test_its_pod_is_stopped_once_it_is_written_why() -> None:
    history, key = told()
    history.status("a", "Admitted", "Evicted", places=["n0"])
    history.stop(key)
    assert history.rules == []
    history, key = told()
    history.status("a", attempt=1)
    history.stop(key)
    assert history.rules == []


def test_its_pod_is_gone_before_the_status_and_another_one_of_that_name_comes() -> None:
    history, key = told()
    history.stop(key, disrupted=True)
    history.drop("Pod", key)
    history.telling("a", "n1")
    history.admit("a", "n1")
    assert history.rules == []


def test_its_pod_is_gone_before_the_status_and_the_next_one_says_nothing() -> None:
    history, key = told()
    history.stop(key, disrupted=True)
    history.drop("Pod", key)
    history.pod("a", 0, "n0")
    assert history.rules == [BORN]


def test_its_pod_is_gone_and_leaves_the_capacity_to_others() -> None:
    history, key = told(gpus=4)
    history.stop(key, disrupted=True)
    history.drop("Pod", key)
    history.job("b")
    history.telling("b", "n0")
    assert history.rules == []


def test_whose_pod_is_gone_may_still_be_written_in_its_place_whatever_the_quota_is_by_now() -> None:
    history, key = told(gpus=4)
    history.queue("root", guaranteed=1)
    for _ in range(2):
        history.wait(6)
        history.node("n1", 4)  # news, so that the status is not late
    history.stop(key, disrupted=True)
    history.drop("Pod", key)
    history.admit("a", "n0", attempt=1)
    assert history.rules == []


def test_an_edit_that_the_operator_could_not_know_of() -> None:
    history = History()
    history.queue("red", parent="root", limit=0)
    history.wait(15)
    history.job("a")
    history.edit("a", queue="red")
    history.telling("a", "n0")
    history.status("a", "Admitted", "Evicted", places=["n0"])
    assert history.rules == []


def test_an_edit_of_long_ago() -> None:
    history = History()
    history.job("a")
    history.edit("a", queue="red")
    history.wait(80)
    history.telling("a", "n0")
    assert history.rules == [BORN]


def test_a_generation_that_is_still_to_come() -> None:
    history, _ = told(generation=2)
    assert history.rules == [BORN]


def test_an_edit_before_the_status_changes_nothing_of_what_it_takes() -> None:
    history, _ = told(gpus=4)
    history.edit("a", suspend=True)
    history.job("b")
    history.telling("b", "n0")
    assert history.rules == [TWICE]


def test_a_job_that_was_deleted_just_now() -> None:
    for removed in (False, True):
        history = History()
        history.job("a")
        if removed:
            history.drop("TrainingJob", "ns/a")
        else:
            history.delete("a")
        key = history.telling("a", "n0")
        history.stop(key)
        assert history.rules == []


def test_a_job_that_was_deleted_long_ago() -> None:
    for removed in (False, True):
        history = History()
        history.job("a")
        if removed:
            history.drop("TrainingJob", "ns/a")
        else:
            history.delete("a")
        history.wait(80)
        history.telling("a", "n0")
        assert history.rules == [BORN]


def test_a_status_that_is_not_written_in_quiet() -> None:
    history, _ = told()
    history.wait(9)
    assert history.rules == []
    history.wait(3)
    assert history.rules == [EQUAL]


def test_a_status_that_is_not_written_after_the_end_of_its_pod() -> None:
    history, key = told()
    history.phase(key, "Succeeded")
    history.wait(12)
    assert history.rules == [EQUAL]


def crowd(jobs: int) -> History:
    """So many jobs that their pods have admitted, all at once."""
    history = History(gpus=100)
    for number in range(jobs):
        history.job(f"j{number}")
        history.telling(f"j{number}", "n0")
    return history


def test_in_a_crowd_statuses_may_wait_for_a_minute() -> None:
    history = crowd(65)
    history.wait(74)
    assert history.rules == []
    history.wait(2)
    assert history.rules == [EQUAL] * 65


def test_what_is_left_of_a_crowd_is_written_at_once() -> None:
    history = crowd(65)
    history.wait(60)
    history.admit("j0", "n0")
    history.wait(9)
    assert history.rules == []
    history.wait(2)
    assert history.rules == [EQUAL] * 64


def test_a_status_that_is_not_written_while_others_have_news() -> None:
    history, _ = told()
    for number in range(9):
        history.wait(8)
        history.job(f"other-{number}")
    assert history.rules == []
    history.wait(8)
    assert history.rules == [EQUAL]


def test_a_pod_that_admits_its_job_is_news_that_events_may_tell_of() -> None:
    for by_pod in (False, True):
        history = History()
        history.job("a")
        if by_pod:
            history.telling("a", "n0")
        history.status("a", "Failed", places=["n0"] if by_pod else [])
        for number in range(14):
            about = {"kind": "TrainingJob", "uid": "uid-a", "name": "a", "namespace": "ns"}
            history.put("Event", f"ns/a-{number}", {"metadata": {"name": f"a-{number}"}, "regarding": about})
        history.end()
        assert ("Events are bounded" in history.rules) != by_pod
