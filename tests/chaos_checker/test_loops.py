"""A violation is reported when a status is written in a loop."""

from __future__ import annotations

from tests.chaos_checker.history import History
from tests.cluster.chaos.checker.loops import MOST_NOMINATIONS, MOST_WRITES, WITHIN_S


def test_a_status_that_is_written_too_often_within_some_seconds() -> None:
    for pause_s, rules in ((0.0, ["no status is written in a loop"]), (WITHIN_S, [])):
        history = History()
        history.job("a")
        for number in range(MOST_WRITES + 1):
            history.status("a", reason=str(number))
            if number == MOST_WRITES // 2:
                history.wait(pause_s + 1.0 if pause_s else 0.0)
        assert history.rules == rules


def test_a_nomination_that_is_renewed_in_a_loop() -> None:
    history = History()
    history.job("p")
    history.running("b", "n0")
    for number in range(MOST_NOMINATIONS + 1):
        history.nominate("p", "n1", victims=("b",), seconds=60 + number)
    assert history.rules == ["no nomination is renewed in a loop"]
    history = History()
    history.job("p")
    for number in range(MOST_NOMINATIONS + 1):
        history.nominate("p", "n1", seconds=60)
        history.status("p", nomination=history._last["TrainingJob", "ns/p"]["status"]["nomination"], reason=str(number))
    assert history.rules == [], "an unchanged nomination is not renewed"
