"""A violation is reported when pods are not those of a written admission, and only then."""

from __future__ import annotations

import json

from tests.judge.history import History

BORN = "no pod before its admission"
WITHIN = "live pods are within the placement"
ATTEMPTS = "two attempts never live at once"


def test_a_correct_lifecycle_of_a_gang_is_no_violation() -> None:
    history = History()
    pods = history.running("a", "n0", "n1")
    for key in pods:
        history.phase(key, "Succeeded")
    history.status("a", "Complete", places=["n0", "n1"])
    history.wait(30)
    for key in pods:
        history.drop("Pod", key)
    history.end()
    assert history.violations == []


def test_a_pod_before_its_admission() -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0")
    assert history.rules == [BORN]


def test_a_violation_shows_both_objects_and_their_versions() -> None:
    history = History()
    history.job("a")
    history.pod("a", 0, "n0")
    line = json.loads(history.violations[0].line())
    assert (line["violation"], line["of"]) == (BORN, "ns/a-w-0-0")
    shown = [(one["kind"], one["key"], one["resourceVersion"]) for one in line["objects"]]
    assert shown == [("Pod", "ns/a-w-0-0", "5"), ("TrainingJob", "ns/a", "4")]
    assert line["objects"][1]["object"]["metadata"]["uid"] == "uid-a"


def test_a_pod_of_a_job_that_never_was() -> None:
    history = History()
    history.pod("ghost", 0, "n0")
    assert history.rules == [BORN]


def test_a_pod_whose_job_was_removed_a_moment_ago_is_judged_by_what_was_written() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.drop("TrainingJob", "ns/a")
    history.pod("a", 0, "n0")
    assert history.rules == []
    history.pod("a", 1, "n0")
    assert history.rules == [BORN]


def test_a_pod_of_a_gang_that_leaves() -> None:
    history = History()
    history.job("a")
    history.status("a", "Admitted", "Evicted", places=["n0"])
    history.pod("a", 0, "n0")
    assert history.rules == [BORN]


def test_a_pod_of_a_gang_that_is_over() -> None:
    history = History()
    history.job("a")
    history.status("a", "Failed", places=["n0"])
    history.pod("a", 0, "n0")
    assert history.rules == [BORN]


def test_a_pod_without_a_place() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.pod("a", 1, "n0")
    assert history.rules == [BORN]


def test_a_pod_that_is_pinned_to_another_node_than_its_place() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    history.pod("a", 0, "n1")
    assert history.rules == [BORN]


def test_a_pod_of_an_older_attempt_is_created_late() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", attempt=1)
    history.pod("a", 0, "n0", attempt=0)
    assert history.rules == [BORN]


def test_a_placement_that_moves_under_its_pods() -> None:
    history = History()
    history.running("a", "n0", "n1")
    history.status("a", "Admitted", "PodsReady", places=["n1", "n0"])
    assert history.rules == [WITHIN]


def test_a_gang_that_is_queued_again_with_its_pods_alive() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a")
    assert history.rules == [WITHIN]


def test_an_attempt_that_counts_backwards() -> None:
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


def test_a_new_attempt_beside_an_ended_pod_of_the_old_one_is_none() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Failed")
    history.admit("a", "n0", attempt=1)
    history.pod("a", 0, "n0", attempt=1)
    assert history.rules == []


def test_a_seat_that_is_taken_twice() -> None:
    history = History()
    history.running("a", "n0")
    body = history._last["Pod", "ns/a-w-0-0"]
    twin = {**body, "metadata": {**body["metadata"], "name": "twin", "uid": "uid-twin"}}
    history.put("Pod", "ns/twin", twin)
    assert history.rules == ["no pod twice"]


def test_a_status_that_contradicts_itself() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", podsWanted=2)
    history.job("b")
    history.status("b", "Admitted", places=["n0"], phase="Running")
    assert history.rules == ["status is of one piece"] * 2
