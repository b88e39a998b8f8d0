"""Pending Events: oldest first, without those that a later one made obsolete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.api_server import OperatorHarness, Server, serve

from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient, Fenced
from muster_operator import events, pending_events
from muster_operator.events import EventRecorder
from muster_operator.pending_events import PendingEvent


def event(name: str, about: str = "", instead: str = "") -> PendingEvent:
    return PendingEvent("team", {"name": name, "type": "Normal"}, about, instead)


def warning(name: str, about: str = "", instead: str = "") -> PendingEvent:
    return PendingEvent("team", {"name": name, "type": "Warning"}, about, instead)


def next_name(recorder: EventRecorder) -> Any:
    following = recorder._events.take()
    return following and following[1].manifest["name"]


def waiting(recorder: EventRecorder) -> list[Any]:
    return [one.manifest["name"] for one in recorder.pending()]


def send_all(recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch, rests: Callable[[float], None]) -> None:
    """Send all pending Events; pauses take no time."""

    async def sleep(seconds: float) -> None:
        rests(seconds)

    async def send() -> None:
        sending = asyncio.create_task(recorder.run())
        while len(recorder):  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        sending.cancel()

    parts = {"TaskGroup": asyncio.TaskGroup, "Event": asyncio.Event, "sleep": sleep}
    monkeypatch.setattr(events, "asyncio", SimpleNamespace(**parts))
    asyncio.run(send())


def test_a_newer_event_replaces_the_pending_one() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    recorder.enqueue(event("a admitted", "a Admitted"))
    recorder.enqueue(event("b admitted", "b Admitted"))
    recorder.enqueue(event("a completed", "a Completed", "a Admitted"))
    assert waiting(recorder) == ["b admitted", "a completed"]
    assert next_name(recorder) == "b admitted"
    recorder.enqueue(event("b completed", "b Completed", "b Admitted"))
    assert waiting(recorder) == ["a completed", "b completed"], "what is sent already is not missed"


def test_when_too_many_are_pending_the_oldest_are_dropped_and_counted() -> None:
    dropped: list[int] = []
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: dropped.append(1))
    for number in range(20_003):
        recorder.enqueue(event(str(number), f"{number} Admitted"))
    assert (len(dropped), waiting(recorder)[0], len(recorder.pending())) == (3, "3", 20_000)
    recorder.enqueue(event("last", "", "0 Admitted"))
    assert len(recorder.pending()) == 20_000


def test_warnings_are_sent_before_all_others_and_dropped_last() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    for one in (event("a"), warning("b"), event("c"), warning("d")):
        recorder.enqueue(one)
    assert waiting(recorder) == ["b", "d", "a", "c"]
    assert next_name(recorder) == "b"
    for number in range(20_000):
        recorder.enqueue(event(str(number)))
    assert (waiting(recorder)[:2], len(recorder)) == (["d", "1"], 20_000)
    for number in range(20_001):
        recorder.enqueue(warning(f"w{number}"))
    assert (waiting(recorder)[0], waiting(recorder)[-1], len(recorder)) == ("w1", "w20000", 20_000)
    recorder.enqueue(event("last"))
    assert (waiting(recorder)[0], "last" in waiting(recorder)) == ("w1", False), (
        "none is dropped for one that is no warning"
    )


def of(namespace: str, name: str, kind: str = "Normal") -> PendingEvent:
    return PendingEvent(namespace, {"name": name, "type": kind})


@pytest.mark.parametrize("kind", ["Normal", "Warning"])
def test_a_tenant_whose_events_fill_the_queue_drops_its_own_only(kind: str) -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    for number in range(10):
        recorder.enqueue(of("quiet", f"q{number}"))
    for number in range(40_000):
        recorder.enqueue(of("loud", str(number), kind))
    recorder.enqueue(of("late", "last"))
    names = waiting(recorder)
    assert len(names) == 20_000
    assert {f"q{number}" for number in range(10)} | {"last", "39999"} <= set(names)


def test_many_small_namespaces_drop_the_events_of_the_largest() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    for number in range(19_000):
        recorder.enqueue(of("large", f"l{number}"))
    for number in range(2_000):
        recorder.enqueue(of(f"small-{number % 100}", str(number)))
    names = set(waiting(recorder))
    assert {str(number) for number in range(2_000)} <= names
    assert ("l999" in names, "l1000" in names) == (False, True)


def test_namespaces_take_turns_with_their_events() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    for number in range(100):
        recorder.enqueue(of("loud", str(number)))
    for name in ("a", "b"):
        recorder.enqueue(of("quiet", name))
    assert [next_name(recorder) for _ in range(6)] == ["0", "a", "1", "b", "2", "3"]


def test_every_fourth_event_is_no_warning() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    for number in range(9):
        recorder.enqueue(warning(f"w{number}"))
        recorder.enqueue(event(str(number)))
    assert [next_name(recorder) for _ in range(9)] == ["w0", "w1", "w2", "0", "w3", "w4", "w5", "1", "w6"]


def test_old_events_except_warnings_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now, dropped = [0.0], []
    monkeypatch.setattr(pending_events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: dropped.append(now[0]))
    for at in (0.0, 100.0):
        now[0] = at
        recorder.enqueue(event(f"normal {at}"))
        recorder.enqueue(warning(f"warned {at}"))
    now[0] = 950.0
    assert [next_name(recorder) for _ in range(4)] == ["warned 0.0", "warned 100.0", "normal 100.0", None]
    assert dropped == [950.0]


def test_without_an_answer_events_wait_and_rejected_ones_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Exception | None] = [ClusterError("gone"), Fenced("not leading"), ApiError(403, "", "no"), None, None]
    rests: list[float] = []
    sent: list[str] = []
    dropped: list[int] = []

    class Server:
        async def post(self, path: str, body: bytes, *, accept: str) -> None:
            if (answer := answers.pop(0)) is not None:
                raise answer
            sent.append(json.loads(body)["name"])

    recorder = EventRecorder(cast(AsyncKubeClient, Server()), lambda: False, lambda: dropped.append(1))
    for one in (warning("a"), event("b"), event("c")):
        recorder.enqueue(one)
    send_all(recorder, monkeypatch, rests.append)
    assert (sent, len(dropped), rests[:2]) == (["b", "c"], 1, [2.0, 2.0])


def test_a_warning_made_obsolete_by_a_later_event_is_not_sent() -> None:
    recorder = EventRecorder(cast(AsyncKubeClient, None), lambda: True, lambda: None)
    recorder.enqueue(warning("a admitted", "a Admitted"))
    recorder.enqueue(event("a completed", "a Completed", "a Admitted"))
    assert waiting(recorder) == ["a completed"]


def test_slower_answers_reduce_the_rate_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rests, takes = [0.0], [], iter([0.003, 0.05, 1.0])

    class Slow:
        async def post(self, path: str, body: bytes, *, accept: str) -> None:
            clock[0] += next(takes)

    recorder = EventRecorder(cast(AsyncKubeClient, Slow()), lambda: False, lambda: None)
    for number in range(3):
        recorder.enqueue(event(str(number)))
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    send_all(recorder, monkeypatch, lambda seconds: rests.append(round(seconds, 6)))
    assert rests == [0.027, 0.45, 2.0], "a tenth of the time, and never more than 2 s"


def test_the_admitted_event_of_a_completed_job_is_dropped_but_not_of_a_failed_one() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        for number, (name, end) in enumerate({"good": "Completed", "bad": "Failed"}.items()):
            harness.submit(name, 5 + number)
            for reason in ("Admitted", end):
                harness.events.record(RecordEvent(f"uid-{name}", "Normal", reason, ""))
        assert harness.pending_events() == [("good", "Completed"), ("bad", "Admitted"), ("bad", "Failed")]

    serve(server, scenario)
