"""A violation is reported when something is overdue; nothing is judged while no operator leads."""

from __future__ import annotations

from tests.judge.history import History

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
    history.status("a", "Admitted", "Evicted", places=["n0", "n1"])
    history.wait(8)
    assert history.rules == []


def test_while_others_have_news_a_gang_has_more_time() -> None:
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


def test_no_gang_is_late_while_no_operator_leads() -> None:
    history = half_bound()
    history.wait(60, led=False)
    assert history.rules == []


def test_a_leader_that_changes_gets_its_time() -> None:
    history = half_bound()
    for number in range(8):
        history.wait(4)
        history.lease(f"operator-{number}")
        history.now += 4  # nobody renews: the next one waits for the Lease to run out
    assert history.rules == []


def test_a_pod_that_is_missing() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", "n1")
    history.phase(history.pod("a", 0, "n0"), "Running", ready=True)
    history.wait(15)
    assert history.rules == [EQUAL]
    assert history.violations[0].message == "has 1 pods of 2"


def test_during_backoff_no_pod_is_missed() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0", attempt=1, requeueAfter=history.time(60))
    history.wait(60)
    assert history.rules == []
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_gang_that_is_ready_and_not_said_to_be() -> None:
    history = History()
    history.job("a")
    history.admit("a", "n0")
    key = history.pod("a", 0, "n0")
    history.bind(key, "n0")
    history.phase(key, "Running", ready=True)
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_gang_that_is_said_to_be_ready_and_is_not() -> None:
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


def test_work_that_is_done_and_not_acknowledged() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Succeeded")
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_gang_that_leaves_and_is_not_stopped() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a", "Admitted", "Evicted", places=["n0"])
    history.wait(15)
    assert history.rules == [EQUAL]


def test_a_gang_that_has_left_and_is_not_queued_again() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.status("a", "Admitted", "Evicted", places=["n0"])
    history.stop(key)
    history.wait(30)
    assert history.rules == []
    history.drop("Pod", key)
    history.wait(15)
    assert history.rules == [EQUAL]


def test_pods_of_a_gang_that_is_over() -> None:
    history = History()
    history.running("a", "n0")
    history.status("a", "Failed", places=["n0"])
    history.wait(15)
    assert history.rules == [EQUAL]


def test_news_of_its_node_is_news_of_a_gang() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.phase(key, "Succeeded")
    for _ in range(5):
        history.wait(8)
        history.node("n0", 4)
    assert history.rules == []
