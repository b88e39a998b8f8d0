"""A violation is reported when objects are left at the end."""

from __future__ import annotations

from tests.chaos_checker.history import History

LEAK = "no leaked object"
OWNER = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "a", "uid": "uid-a"}


def test_a_pod_a_service_and_a_secret_that_outlive_their_job() -> None:
    history = History()
    history.running("a", "n0")
    for kind in ("Service", "Secret"):
        history.put(kind, "ns/a", {"metadata": {"name": "a", "ownerReferences": [OWNER]}})
    history.end()
    assert history.rules == ["every job ends"]
    history.remove("TrainingJob", "ns/a")
    history.end()
    assert history.rules == ["every job ends", LEAK, LEAK]
    assert [violation.key for violation in history.violations[1:]] == ["ns/a-w-0-0", "ns/a"]


def test_a_live_pod_of_a_job_that_has_ended() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a", "Complete", placement=["n0"])
    history.end()
    assert history.rules == [LEAK]


def test_a_nomination_of_a_job_that_has_ended() -> None:
    history = History()
    history.job("a")
    nodes = [{"role": "w", "flavor": "any", "nodes": [{"node": "n0", "indexes": "0"}]}]
    history.status("a", "Failed", nomination={"placement": nodes, "expiresAt": history.time(60)})
    history.end()
    assert history.rules == [LEAK]


def test_a_second_lease() -> None:
    history = History()
    history.lease("operator-a")
    history.put("Lease", "kube-system/apiserver", {"metadata": {"name": "apiserver", "namespace": "kube-system"}})
    history.end()
    assert history.rules == []
    history.put("Lease", "team/other", {"metadata": {"name": "other", "namespace": "team"}})
    history.end()
    assert history.rules == [LEAK]


def test_more_events_than_writes() -> None:
    history = History()
    history.job("a")
    history.status("a", "Failed")
    for number in range(20):
        about = {"kind": "TrainingJob", "uid": "uid-a", "name": "a", "namespace": "ns"}
        history.put("Event", f"ns/a-{number}", {"metadata": {"name": f"a-{number}"}, "regarding": about})
    history.end()
    assert history.rules == ["Events are bounded"]
