"""A violation is reported when something is overdue; nothing is checked while no operator leads."""

from __future__ import annotations

from tests.chaos_checker.history import History

PARTIAL = "no partial gang"
EQUAL = "status equals pods"


def half_bound() -> History:
    """A gang of which one of two pods is bound."""
    history = History()
    history.job("a", start_timeout=5)
    history.admit("a", "n0", "n1")
    history.bind(history.pod("a", 0, "n0"), "n0")
    history.pod("a", 1, "n1")
    return history


def test_a_gang_that_stays_half_bound_past_its_start_timeout() -> None:
    history = half_bound()
    history.wait(75)
    assert PARTIAL in history.rules


def test_a_gang_that_is_half_bound_for_a_while() -> None:
    history = half_bound()
    history.wait(8)
    history.status("a", "Admitted", "Evicted", placement=["n0", "n1"])
    history.wait(8)
    assert history.rules == []


def test_while_other_jobs_change_a_gang_has_more_time() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Succeeded")
    for number in range(7):
        history.wait(8)
        history.job(f"other-{number}")
    assert history.rules == []
    history.wait(8)
    history.job("another")
    assert history.rules == [EQUAL]


def test_no_gang_is_overdue_while_no_operator_leads() -> None:
    history = half_bound()
    history.wait(60, leads=False)
    assert history.rules == []


def test_a_new_leader_extends_every_deadline() -> None:
    history = half_bound()
    for number in range(8):
        history.wait(4)
        history.lease(f"operator-{number}")
        history.now += 4  # the next operator waits until the Lease expires
    assert history.rules == []


def test_a_pod_that_is_missing() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", "n1")
    history.phase(history.pod("a", 0, "n0"), "Running", ready=True)
    history.wait(15)
    assert history.rules == [EQUAL]
    assert history.violations[0].message == "has 1 pods of 2"


def test_during_backoff_no_pod_is_missing() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", attempt=1, requeueAfter=history.time(60))
    history.wait(60)
    assert history.rules == []
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_ready_gang_whose_status_is_not_ready() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    key = history.pod("a", 0, "n0")
    history.bind(key, "n0")
    history.phase(key, "Running", ready=True)
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_status_that_is_ready_without_a_ready_pod() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Running", ready=False)
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_failed_pod_that_does_not_fail_its_gang() -> None:
    history = History()
    keys = history.running("a", "n0", "n1")
    history.phase(keys[0], "Failed")
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_gang_that_succeeded_and_is_not_complete() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Succeeded")
    history.wait(15)
    assert history.rules == [EQUAL]


def test_an_evicted_gang_that_is_not_stopped() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a", "Admitted", "Evicted", placement=["n0"])
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_stopped_gang_that_is_not_queued_again() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.status("a", "Admitted", "Evicted", placement=["n0"])
    history.stop(key)
    history.wait(30)
    assert history.rules == []
    history.remove("Pod", key)
    history.wait(15)
    assert history.rules == [EQUAL]


def test_live_pods_of_a_gang_that_has_ended() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a", "Failed", placement=["n0"])
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_change_of_its_node_extends_a_gangs_deadline() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Succeeded")
    for _ in range(5):
        history.wait(8)
        history.node("n0", 4)
    assert history.rules == []
