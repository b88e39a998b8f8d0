"""A gang of one pod may be admitted by its pod: the same guarantees apply as to a written admission."""

from __future__ import annotations

import pytest
from tests.chaos_checker.history import History

ADMITTED_FIRST = "no pod before its admission"
WITHIN = "live pods are within the placement"
QUOTA = "admitted within quota"
ASSIGNED = "no node is assigned beyond its capacity"
EQUAL = "status equals pods"
STOPPED = "a pod is stopped after the reason is written"


def admitted_by_pod(*nodes: str, **pod: int) -> tuple[History, str]:
    """A job that its pod has admitted to the first of these nodes, and the key of the pod."""
    history = History()
    history.job("a", gpus=pod.get("gpus", 1))
    return history, history.admit_by_pod("a", nodes[0] if nodes else "n0", **pod)


def test_a_pod_records_the_admission_and_the_status_follows() -> None:
    history, key = admitted_by_pod()
    history.bind(key, "n0")
    history.phase(key, "Running", ready=True)
    history.wait(5)
    history.status("a", "Admitted", "PodsReady", placement=["n0"])
    history.wait(30)
    history.phase(key, "Succeeded")
    history.status("a", "Complete", placement=["n0"])
    history.wait(30)
    history.end()
    assert history.violations == []


def test_the_first_status_may_be_the_end() -> None:
    history, key = admitted_by_pod()
    history.phase(key, "Succeeded")
    history.status("a", "Complete", placement=["n0"])
    history.wait(30)
    assert history.rules == []


def test_it_is_beyond_quota() -> None:
    history = History()
    history.queue("red", parent="root", limit=2)
    history.wait(15)
    history.running("first", "n0", queue="red", gpus=2)
    history.job("a", queue="red")
    history.admit_by_pod("a", "n1")
    assert history.rules == [QUOTA]


def test_another_one_is_beyond_quota_because_of_it() -> None:
    for by_status in (False, True):
        history = History()
        history.queue("red", parent="root", limit=4)
        history.wait(15)
        history.job("a", queue="red", gpus=4)
        history.admit_by_pod("a", "n0", gpus=4)
        history.job("b", queue="red")
        if by_status:
            history.admit("b", "n1")
        else:
            history.admit_by_pod("b", "n1")
        assert history.rules == [QUOTA]


def test_its_status_is_not_charged_a_second_time() -> None:
    history, _ = admitted_by_pod(gpus=4)
    history.queue("root", guaranteed=1)
    history.wait(11)
    history.admit("a", "n0")
    assert EQUAL in history.rules  # not written for 11 s
    assert QUOTA not in history.rules


def test_the_node_is_full() -> None:
    history = History()
    history.running("first", "n0", gpus=4)
    history.job("a")
    history.admit_by_pod("a", "n0")
    assert history.rules == [ASSIGNED]


def test_others_find_the_node_full() -> None:
    for by_status in (False, True):
        history, _ = admitted_by_pod(gpus=4)
        history.job("b")
        if by_status:
            history.admit("b", "n0")
        else:
            history.admit_by_pod("b", "n0")
        assert history.rules == [ASSIGNED]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_gang_of_several_pods_is_not_admitted_by_a_pod(replicas: int) -> None:
    history = History()
    history.job("a", replicas=replicas)
    history.admit_by_pod("a", "n0")
    assert history.rules == [ADMITTED_FIRST]
    assert "not a gang of one pod" in history.violations[0].message


def test_an_elastic_gang_may_begin_with_one_pod() -> None:
    history = History()
    history.job("a", replicas=3, minReplicas=1)
    history.admit_by_pod("a", "n0")
    assert history.rules == []
    history.admit_by_pod("a", "n0", index=1)
    assert history.rules == [ADMITTED_FIRST]


def test_a_job_with_a_nomination_is_not_admitted_by_its_pod() -> None:
    history = History()
    history.job("a")
    history.nominate("a", "n0")
    history.admit_by_pod("a", "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_job_that_has_ended_or_is_suspended_or_at_another_attempt_is_not() -> None:
    for condition, attempt in (("Failed", 0), ("Cancelled", 0), ("Complete", 0), ("Suspended", 0), ("", 1)):
        history = History()
        history.job("a")
        history.status("a", *([condition] if condition else []), attempt=attempt)
        history.admit_by_pod("a", "n0")
        assert history.rules == [ADMITTED_FIRST]


def test_a_record_that_is_added_later_admits_no_gang() -> None:
    history = History()
    history.job("a")
    key = history.pod("a", 0, "n0")
    body = history._last["Pod", key]
    annotations = {"muster.dev/admitted": '{"at": 1, "flavor": "any", "generation": 1, "seal": "x"}'}
    history.put("Pod", key, {**body, "metadata": {**body["metadata"], "annotations": annotations}})
    history.status("a")
    assert history.rules == [ADMITTED_FIRST, WITHIN]


@pytest.mark.parametrize("text", ["{", "[]", '{"at": 1}', '{"flavor": "", "generation": 1}'])
def test_an_invalid_record_admits_no_gang(text: str) -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0", record=text)
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_without_a_pin_admits_no_gang() -> None:
    history, _ = admitted_by_pod("")
    assert history.rules == [ADMITTED_FIRST]


def test_a_status_with_another_node_than_the_pod() -> None:
    history, _ = admitted_by_pod()
    history.admit("a", "n1")
    assert history.rules == [WITHIN]


def test_a_status_with_another_node_than_a_pod_that_has_ended() -> None:
    history, key = admitted_by_pod()
    history.phase(key, "Succeeded")
    history.status("a", "Complete", placement=["n1"])
    assert history.rules == [WITHIN]


def test_a_status_that_queues_it_again_with_a_live_pod() -> None:
    history, _ = admitted_by_pod()
    history.status("a", "Suspended")
    assert history.rules == [WITHIN]


def test_a_status_that_does_not_decide_keeps_the_record() -> None:
    history, _ = admitted_by_pod(gpus=4)
    history.status("a", conditions=[{"type": "Admitted", "status": "False", "reason": "InsufficientResources"}])
    history.job("b")
    history.admit_by_pod("b", "n0")
    assert history.rules == [ASSIGNED]


def test_its_pod_is_stopped_before_the_reason_is_written() -> None:
    history, key = admitted_by_pod()
    history.stop(key)
    assert history.rules == [STOPPED]
    history, key = admitted_by_pod()
    history.remove("Pod", key)
    assert history.rules == [STOPPED]


def test_its_pod_is_stopped_after_the_reason_is_written() -> None:
    history, key = admitted_by_pod()
    history.status("a", "Admitted", "Evicted", placement=["n0"])
    history.stop(key)
    assert history.rules == []
    history, key = admitted_by_pod()
    history.status("a", attempt=1)
    history.stop(key)
    assert history.rules == []


def test_its_pod_is_removed_before_the_status_and_another_one_of_that_name_is_created() -> None:
    history, key = admitted_by_pod()
    history.stop(key, disrupted=True)
    history.remove("Pod", key)
    history.admit_by_pod("a", "n1")
    history.admit("a", "n1")
    assert history.rules == []


def test_its_pod_is_removed_before_the_status_and_the_next_one_has_no_record() -> None:
    history, key = admitted_by_pod()
    history.stop(key, disrupted=True)
    history.remove("Pod", key)
    history.pod("a", 0, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_its_pod_is_removed_and_its_capacity_is_free() -> None:
    history, key = admitted_by_pod(gpus=4)
    history.stop(key, disrupted=True)
    history.remove("Pod", key)
    history.job("b")
    history.admit_by_pod("b", "n0")
    assert history.rules == []


def test_a_job_whose_pod_was_removed_may_still_be_written_with_its_placement_beyond_a_lowered_quota() -> None:
    history, key = admitted_by_pod(gpus=4)
    history.queue("root", guaranteed=1)
    for _ in range(2):
        history.wait(6)
        history.node("n1", 4)  # a change, so that the status is not overdue
    history.stop(key, disrupted=True)
    history.remove("Pod", key)
    history.admit("a", "n0", attempt=1)
    assert history.rules == []


def test_an_edit_that_the_operator_could_not_know() -> None:
    history = History()
    history.queue("red", parent="root", limit=0)
    history.wait(15)
    history.job("a")
    history.edit("a", queue="red")
    history.admit_by_pod("a", "n0")
    history.status("a", "Admitted", "Evicted", placement=["n0"])
    assert history.rules == []


def test_an_edit_long_ago() -> None:
    history = History()
    history.job("a")
    history.edit("a", queue="red")
    history.wait(80)
    history.admit_by_pod("a", "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_generation_that_does_not_exist_yet() -> None:
    history, _ = admitted_by_pod(generation=2)
    assert history.rules == [ADMITTED_FIRST]


def test_an_edit_before_the_status_does_not_change_its_usage() -> None:
    history, _ = admitted_by_pod(gpus=4)
    history.edit("a", suspend=True)
    history.job("b")
    history.admit_by_pod("b", "n0")
    assert history.rules == [ASSIGNED]


def test_a_job_that_was_deleted_just_now() -> None:
    for removed in (False, True):
        history = History()
        history.job("a")
        if removed:
            history.remove("TrainingJob", "ns/a")
        else:
            history.delete("a")
        key = history.admit_by_pod("a", "n0")
        history.stop(key)
        assert history.rules == []


def test_a_job_that_was_deleted_long_ago() -> None:
    for removed in (False, True):
        history = History()
        history.job("a")
        if removed:
            history.remove("TrainingJob", "ns/a")
        else:
            history.delete("a")
        history.wait(80)
        history.admit_by_pod("a", "n0")
        assert history.rules == [ADMITTED_FIRST]


def test_a_status_that_is_not_written_in_a_quiet_cluster() -> None:
    history, _ = admitted_by_pod()
    history.wait(9)
    assert history.rules == []
    history.wait(3)
    assert history.rules == [EQUAL]


def test_a_status_that_is_not_written_after_the_end_of_its_pod() -> None:
    history, key = admitted_by_pod()
    history.phase(key, "Succeeded")
    history.wait(12)
    assert history.rules == [EQUAL]


def burst(jobs: int) -> History:
    """So many jobs that their pods have admitted, all at once."""
    history = History(gpus=100)
    for number in range(jobs):
        history.job(f"j{number}")
        history.admit_by_pod(f"j{number}", "n0")
    return history


def test_in_a_burst_statuses_may_wait_for_a_minute() -> None:
    history = burst(65)
    history.wait(74)
    assert history.rules == []
    history.wait(2)
    assert history.rules == [EQUAL] * 65


def test_the_last_64_of_a_burst_are_written_at_once() -> None:
    history = burst(65)
    history.wait(60)
    history.admit("j0", "n0")
    history.wait(9)
    assert history.rules == []
    history.wait(2)
    assert history.rules == [EQUAL] * 64


def test_a_status_that_is_not_written_while_other_jobs_change() -> None:
    history, _ = admitted_by_pod()
    for number in range(9):
        history.wait(8)
        history.job(f"other-{number}")
    assert history.rules == []
    history.wait(8)
    assert history.rules == [EQUAL]


def test_a_pod_that_admits_its_job_counts_as_a_write_for_events() -> None:
    for by_pod in (False, True):
        history = History()
        history.job("a")
        if by_pod:
            history.admit_by_pod("a", "n0")
        history.status("a", "Failed", placement=["n0"] if by_pod else [])
        for number in range(14):
            about = {"kind": "TrainingJob", "uid": "uid-a", "name": "a", "namespace": "ns"}
            history.put("Event", f"ns/a-{number}", {"metadata": {"name": f"a-{number}"}, "regarding": about})
        history.end()
        assert ("Events are bounded" in history.rules) != by_pod
