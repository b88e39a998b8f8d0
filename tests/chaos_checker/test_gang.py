"""A violation is reported when pods are not those of a written admission, and only then."""

from __future__ import annotations

import json

from tests.chaos_checker.history import History

ADMITTED_FIRST = "no pod before its admission"
WITHIN = "live pods are within the placement"
ATTEMPTS = "pods of two attempts never exist at the same time"


def test_a_correct_lifecycle_of_a_gang_is_no_violation() -> None:
    history = History()
    pods = history.running("a", "n0", "n1")
    for key in pods:
        history.phase(key, "Succeeded")
    history.status("a", "Complete", placement=["n0", "n1"])
    history.wait(30)
    for key in pods:
        history.remove("Pod", key)
    history.end()
    assert history.violations == []


def test_a_pod_before_its_admission() -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_the_pod_of_a_job_of_one_pod_before_its_admission_with_the_same_placement() -> None:
    history = History()
    history.job("a", replicas=1)
    history.pod("a", 0, "n0")
    history.admit("a", "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_violation_shows_both_objects_and_their_versions() -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0")
    line = json.loads(history.violations[0].line())
    assert (line["violation"], line["of"]) == (ADMITTED_FIRST, "ns/a-w-0-0")
    objects = [(one["kind"], one["key"], one["resourceVersion"]) for one in line["objects"]]
    assert objects == [("Pod", "ns/a-w-0-0", "5"), ("TrainingJob", "ns/a", "4")]
    assert line["objects"][1]["object"]["metadata"]["uid"] == "uid-a"


def test_a_pod_of_a_job_that_never_existed() -> None:
    history = History()
    history.pod("ghost", 0, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_whose_job_was_removed_a_moment_ago_is_checked_by_what_was_written() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.remove("TrainingJob", "ns/a")
    history.pod("a", 0, "n0")
    assert history.rules == []
    history.pod("a", 1, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_of_an_evicted_gang() -> None:
    history = History()
    history.job("a")
    history.status("a", "Admitted", "Evicted", placement=["n0"])
    history.pod("a", 0, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_of_a_gang_that_has_ended() -> None:
    history = History()
    history.job("a")
    history.status("a", "Failed", placement=["n0"])
    history.pod("a", 0, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_that_is_not_in_the_placement() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.pod("a", 1, "n0")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_that_is_pinned_to_another_node_than_its_placement() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.pod("a", 0, "n1")
    assert history.rules == [ADMITTED_FIRST]


def test_a_pod_of_an_older_attempt_is_created_late() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", attempt=1)
    history.pod("a", 0, "n0", attempt=0)
    assert history.rules == [ADMITTED_FIRST]


def test_a_placement_that_changes_under_live_pods() -> None:
    history = History()
    history.running("a", "n0", "n1")
    history.status("a", "Admitted", "PodsReady", placement=["n1", "n0"])
    assert history.rules == [WITHIN]


def test_a_gang_that_is_queued_again_with_live_pods() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a")
    assert history.rules == [WITHIN]


def test_an_attempt_with_a_lower_number() -> None:
    history = History()
    history.running("a", "n0", attempt=2)
    history.admit("a", "n0", attempt=1)
    assert history.rules == [WITHIN]


def test_a_new_attempt_beside_the_old_one() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.admit("a", "n0", attempt=1)
    history.stop(key)
    history.pod("a", 0, "n0", attempt=1)
    assert history.rules == [ATTEMPTS]


def test_a_new_attempt_beside_an_ended_pod_of_the_old_one_is_no_violation() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Failed")
    history.admit("a", "n0", attempt=1)
    history.pod("a", 0, "n0", attempt=1)
    assert history.rules == []


def test_two_pods_of_one_slot() -> None:
    history = History()
    history.running("a", "n0")
    body = history._last["Pod", "ns/a-w-0-0"]
    duplicate = {**body, "metadata": {**body["metadata"], "name": "duplicate", "uid": "uid-duplicate"}}
    history.put("Pod", "ns/duplicate", duplicate)
    assert history.rules == ["no pod twice"]


def test_a_status_that_contradicts_itself() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", podsWanted=2)
    history.job("b")
    history.status("b", "Admitted", placement=["n0"], phase="Running")
    assert history.rules == ["status is consistent"] * 2
