"""A Lease that changes hands is a violation after a hostile message, when there is no other fault."""

from __future__ import annotations

from tests.chaos_checker.history import History
from tests.cluster.chaos.checker.objects import HOSTILE

KEPT = "the leader keeps its Lease"


def with_hostile_pod() -> History:
    history = History()
    (key,) = history.running("a", "n0")
    history.wait(2)
    history._change(key, lambda body: body["metadata"].update(annotations={HOSTILE: "true"}))
    return history


def test_a_leader_that_is_replaced_after_a_hostile_message() -> None:
    history = with_hostile_pod()
    history.now += 8  # without a renewal
    history.lease("operator-b")
    assert history.rules == [KEPT]
    assert history.violations[0].message.startswith("operator-a lost it to operator-b after a hostile message")


def test_a_leader_that_gives_its_lease_up_after_a_hostile_message() -> None:
    history = with_hostile_pod()
    history.lease("")
    assert history.rules == [KEPT]


def test_a_leader_that_renews_late_or_is_replaced_for_another_reason() -> None:
    history = with_hostile_pod()
    history.now += 4
    history.lease("operator-a")
    history.wait(61)
    history.lease("operator-b")
    other = History()
    other.running("a", "n0")
    other.wait(2)
    other.lease("operator-b")
    assert (history.rules, other.rules) == ([], [])
