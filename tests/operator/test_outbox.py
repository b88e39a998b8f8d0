"""Events that wait: the oldest first, and none that a later one has made worthless."""

from __future__ import annotations

from typing import Any, cast

from tests.operator.serving import Rounds, Server, serve

from muster.cluster import RecordEvent
from muster_operator.kube.api import Api
from muster_operator.outbox import Letter, Outbox


def letter(name: str, about: str = "", instead: str = "") -> Letter:
    return Letter("team", {"name": name}, about, instead)


def waiting(outbox: Outbox) -> list[Any]:
    return [one.manifest["name"] for one in outbox.waiting()]


def test_one_that_tells_more_is_sent_in_place_of_the_one_that_waits() -> None:
    outbox = Outbox(cast(Api, None), lambda: True, lambda: None)
    outbox.add(letter("a admitted", "a Admitted"))
    outbox.add(letter("b admitted", "b Admitted"))
    outbox.add(letter("a completed", "a Completed", "a Admitted"))
    assert waiting(outbox) == ["b admitted", "a completed"]
    assert outbox._take().manifest["name"] == "b admitted"
    outbox.add(letter("b completed", "b Completed", "b Admitted"))
    assert waiting(outbox) == ["a completed", "b completed"], "what is sent already is not missed"


def test_when_too_many_wait_the_oldest_are_dropped_and_counted() -> None:
    dropped: list[int] = []
    outbox = Outbox(cast(Api, None), lambda: True, lambda: dropped.append(1))
    for number in range(20_003):
        outbox.add(letter(str(number), f"{number} Admitted"))
    assert (len(dropped), waiting(outbox)[0], len(outbox.waiting())) == (3, "3", 20_000)
    outbox.add(letter("late", "", "0 Admitted"))
    assert len(outbox.waiting()) == 20_000


def test_of_a_job_that_is_complete_nobody_is_told_any_more_that_it_was_admitted_but_of_one_that_failed() -> None:
    server = Server()

    async def story(api: Api) -> None:
        rounds = Rounds(api)
        for number, (name, end) in enumerate({"good": "Completed", "bad": "Failed"}.items()):
            rounds.submit(name, 5 + number)
            for reason in ("Admitted", end):
                rounds.writer.record(RecordEvent(f"uid-{name}", "Normal", reason, ""))
        assert rounds.told() == [("good", "Completed"), ("bad", "Admitted"), ("bad", "Failed")]

    serve(server, story)
