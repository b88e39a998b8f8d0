"""A violation is reported when a marked gang, which has to borrow, waits for too long, or idles what it cannot use."""

from __future__ import annotations

import pytest
from tests.chaos_checker.history import History

LATE = "a gang that has to borrow starts in time"
IDLE = "what a gang cannot use is borrowed"


def waiting() -> History:
    """Two queues with 4 of the 8 GPUs each; a gang of blue that needs all 8 waits within 20 s."""
    history = History()
    history.queue("red", parent="root", guaranteed=4)
    history.queue("blue", parent="root", guaranteed=4)
    history.wait(15)
    history.job("large", queue="blue", gpus=4, starts_within=20, replicas=2)
    return history


def finish(history: History, name: str) -> None:
    history.phase(f"ns/{name}-w-0-0", "Succeeded")
    history.status(name, "Complete", placement=["n0"])


def test_a_gang_that_waits_for_too_long() -> None:
    history = waiting()
    history.wait(19)
    assert history.rules == []
    history.wait(3)
    assert history.rules == [LATE]


def test_a_gang_that_is_deleted_or_waits_while_no_operator_leads_is_not_late() -> None:
    history = waiting()
    history.wait(30, leads=False)
    history.delete("large")
    history.wait(30)
    history.remove("TrainingJob", "ns/large")
    history.wait(30)
    assert history.rules == []


@pytest.mark.parametrize(("nodes", "rules"), [(("n0",), [IDLE]), (("n0", "n1"), [])])
def test_other_queues_borrow_while_a_gang_waits(nodes: tuple[str, ...], rules: list[str]) -> None:
    history = waiting()
    history.wait(16)
    for number, node in enumerate(nodes):
        history.running(f"a{number}", node, queue="red", gpus=4)
    for number in range(len(nodes)):
        finish(history, f"a{number}")
    history.admit("large", "n0", "n1")
    assert history.rules == rules


def test_a_gang_that_borrowed_before_the_operator_knew_of_the_waiting_one_does_not_count() -> None:
    history = waiting()
    for number, node in enumerate(("n0", "n1")):
        history.running(f"a{number}", node, queue="red", gpus=4)
    history.wait(16)
    for number in range(2):
        finish(history, f"a{number}")
    history.admit("large", "n0", "n1")
    assert history.rules == [IDLE]


def test_a_gang_that_starts_soon_idles_nothing() -> None:
    history = waiting()
    history.wait(10)
    history.admit("large", "n0", "n1")
    assert history.rules == []
