"""Rounds over the captures: collectors that do not answer delay neither other captures nor the rest of the operator."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.operator.caches import new_cache
from tests.operator.objects import LONG_S, capture_document, pod_seen, read
from tests.operator.polling import UID, PollerHarness, seen_job

from muster.api.spec import TraceCapture, TraceCaptureStatus
from muster.capture.exchange import CaptureExchange
from muster.capture.protocol import CaptureObservation, HungRank, RankAnswer, RankReport
from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.kube.objects import RawCustomObject, V1Container
from muster_operator.captures.capture_cache import CaptureCache
from muster_operator.captures.capture_controller import CaptureController
from muster_operator.collectors import capture_client
from muster_operator.collectors.capture_client import CollectorAnswers, ExchangeLimits, _HungRank
from muster_operator.collectors.heartbeat_client import HeartbeatTarget
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.events import JobEvents
from muster_operator.hang_sentences import HangSentences
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import CollectorSidecarConfig

TARGET = HeartbeatTarget("u", "p", "127.0.0.1", 1, "t" * 20, durable=True)


def new_controller(
    captures: CaptureCache | None = None,
    events: JobEvents | None = None,
    exchange: Callable[[Any, CaptureExchange], CollectorAnswers] = capture_client.exchange_all,
) -> CaptureController:
    return CaptureController(
        queue=cast(Any, None),
        cache=new_cache()[0],
        captures=captures or CaptureCache(lambda: None),
        config=CollectorSidecarConfig(),
        tokens=None,
        metrics=OperatorMetrics(),
        is_leading=lambda: True,
        wakeup=asyncio.Event(),
        hangs=HangSentences(lambda: None),
        events=events or cast(Any, SimpleNamespace(stalled=set())),
        exchange=exchange,
        active_interval_s=0.0,
    )


def test_a_job_with_slow_collectors_delays_no_capture_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        captures, answers, begun = CaptureCache(lambda: None), asyncio.Event(), list[str]()

        async def act(controller: CaptureController, capture: TraceCapture, known: object) -> None:
            begun.append(capture.metadata.name)
            if capture.spec.job == "slow":
                await answers.wait()

        async def withdraw(controller: CaptureController, capture: TraceCapture, known: object) -> None:
            begun.append(f"withdraw {capture.metadata.name}")

        monkeypatch.setattr(CaptureController, "_reconcile", act)
        monkeypatch.setattr(CaptureController, "_withdraw", withdraw)
        controller = new_controller(captures)
        slow = read(RawCustomObject, capture_document("a", job="slow", proposal=1))
        captures.on_upsert(slow)
        captures.on_upsert(read(RawCustomObject, capture_document("b", job="other")))
        for _ in range(2):
            await controller._reconcile_all()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert begun == ["a", "b", "b"]
        captures.on_list({"default/b"}, 1000)  # deleted; its last request may still be on the way to the ranks
        await controller._reconcile_all()
        await asyncio.sleep(0)
        assert "withdraw a" not in begun
        answers.set()
        await asyncio.gather(*controller._tasks.values())
        await controller._reconcile_all()
        await asyncio.gather(*controller._tasks.values())
        assert begun.count("withdraw a") == 1

    asyncio.run(scenario())


def test_exchanges_do_not_use_the_executor_of_the_event_loop() -> None:
    seen, busy = CaptureObservation(unreachable=("p",)), threading.Event()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        occupied = loop.run_in_executor(None, busy.wait)
        try:
            async with asyncio.timeout(LONG_S):
                controller = new_controller(exchange=lambda targets, wanted: CollectorAnswers(seen))
                assert (await controller._ask([TARGET], CaptureExchange(id="c"))).seen == seen
        finally:
            busy.set()
            await occupied

    asyncio.run(scenario())


def test_an_exchange_has_one_deadline_for_all_collectors() -> None:
    limits = ExchangeLimits(0.1, timeout_s=10 * LONG_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        targets = [HeartbeatTarget("u", f"p-{number}", "127.0.0.1", port, "t" * 20, True) for number in range(80)]
        seen = capture_client.exchange_all(targets, CaptureExchange(id="c"), limits).seen
    assert seen.unreachable == tuple(f"p-{number}: no answer within 0.1 s" for number in range(80))


def test_of_what_collectors_send_one_entry_of_each_rank_is_kept_and_its_texts_are_cut() -> None:
    answers = capture_client._Answers(CaptureExchange(id="c", stacks_of=0))
    for pod, attempt in (("p-0", 1), ("p-1", 2), ("p-2", 0)):
        reports = [RankReport(rank=rank, world_size=9000, attempt=attempt, step=1, age_s=0.0) for rank in (0, 0, 5000)]
        texts = [
            RankAnswer(id=name, proposal=1, attempt=attempt, rank=rank, state="failed", reason="r" * 9000)
            for name, rank in (("c", 0), ("other", 1), ("c", 5000), ("c", -1))
        ]
        stacks = (_HungRank(0, ("f" * 9000,) * 99, "r" * 9000, "x" * 9000), _HungRank(5000))
        answers.add(capture_client._Response("u", pod, tuple(reports), tuple(texts), (), stacks))
    seen = answers.all(()).seen
    assert [(one.rank, one.attempt) for one in seen.reports] == [(0, 2)]
    assert [(one.rank, one.attempt, len(one.reason)) for one in seen.answers] == [(0, 2, 500)]
    (hung,) = seen.stacks
    assert (hung.pod, len(hung.frames), len(hung.frames[0]), len(hung.reason), len(hung.file)) == (
        "p-2", 16, 500, 500, 256,
    )  # fmt: skip


def with_collector(**status: Any) -> tuple[CaptureController, CollectorTokens]:
    """A controller, and one job with a running pod that has a collector."""
    poller = PollerHarness("10.0.0.1")
    poller.cache.jobs.on_upsert(seen_job(version=9, **status))
    controller, tokens = new_controller(), poller.asking.tokens
    controller.cache, controller.tokens = poller.cache, tokens
    return controller, tokens


def test_without_the_key_of_the_tokens_a_capture_waits_and_is_not_failed() -> None:
    controller, tokens = with_collector()
    (known,) = controller.cache.jobs.all()
    assert [one.host for one in controller._targets(known)[1]] == ["10.0.0.1"]
    tokens.clear()
    with pytest.raises(ClusterError, match="key of collector tokens"):
        controller._targets(known)


def test_pods_of_an_attempt_that_has_not_begun_are_no_targets() -> None:
    controller, _ = with_collector()
    pod = pod_seen("", 10, owner=UID, slot=(0, 1), podIP="10.0.0.2")
    pod.spec.init_containers = [V1Container(name="muster-collector")]
    controller.cache.pods.on_upsert(pod)
    (known,) = controller.cache.jobs.all()
    assert [one.host for one in controller._targets(known)[1]] == ["10.0.0.1"]


def test_a_failed_capture_is_withdrawn_before_its_status_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def ask(controller: CaptureController, targets: object, wanted: CaptureExchange) -> CollectorAnswers:
        done.append("withdraw" if wanted.request is not None and wanted.request.cancelled else "observe")
        report = RankReport(rank=0, world_size=1, attempt=2, step=5, age_s=0.0)  # of a later attempt
        return CollectorAnswers(CaptureObservation(reports=(report,)))

    async def write(controller: CaptureController, capture: TraceCapture, status: TraceCaptureStatus) -> bool:
        done.append(status.reason)
        return True

    monkeypatch.setattr(CaptureController, "_ask", ask)
    monkeypatch.setattr(CaptureController, "_write", write)
    controller, _ = with_collector()
    (known,) = controller.cache.jobs.all()
    proposed: dict[str, Any] = {
        "proposal": 1,
        "attempt": 1,
        "startStep": 9,
        "endStep": 12,
        "jobUid": UID,
        "ranks": [{"rank": 0}],
    }
    asyncio.run(controller._reconcile(TraceCapture.model_validate(capture_document("a", **proposed)), known))
    assert done == ["observe", "withdraw", "JobRestarted"]


def test_collectives_in_an_answer_are_not_decoded_in_the_operator() -> None:
    answers = capture_client._Answers(CaptureExchange(id="c", stacks_of=0))
    text = b'{"job_uid": "u", "pod": "p", "stacks": [{"rank": 0, "collectives": {"groups": [[[1, 2]]]}}]}'
    answers.add(msgspec.json.decode(text, type=capture_client._Response), "n-1")
    found = answers.all(())
    assert [(one.rank, one.node, one.collectives) for one in found.seen.stacks] == [(0, "n-1", None)]
    assert b'"groups": [[[1, 2]]]' in found.stacks[0]


def test_the_answers_of_the_collectors_of_a_job_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"job_uid": "u", "pod": "p"}'

    async def answer(*request: object) -> bytes:
        return body

    monkeypatch.setattr(capture_client, "signed_request", answer)
    targets, limits = [replace(TARGET, port=port) for port in range(1, 4)], ExchangeLimits(LONG_S, 2 * len(body))
    found = capture_client.exchange_all(targets, CaptureExchange(id="c"), limits)
    assert found.seen.unreachable == ("p: the answers of the job exceed 0 MiB",)
    assert found.size == 3 * len(body)


def test_captures_of_stacks_of_one_namespace_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def collect(*arguments: object) -> TraceCaptureStatus:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1
        return TraceCaptureStatus()

    async def write(controller: CaptureController, capture: TraceCapture, status: TraceCaptureStatus) -> bool:
        return True

    monkeypatch.setattr(CaptureController, "_collect_stacks", collect)
    monkeypatch.setattr(CaptureController, "_write", write)
    controller, _ = with_collector()
    (known,) = controller.cache.jobs.all()
    document = capture_document("a", job="llama")
    capture = TraceCapture.model_validate({**document, "spec": {"job": "llama", "kind": "Stacks"}})

    async def scenario() -> None:
        await asyncio.gather(*(controller._reconcile(capture, known) for _ in range(5)))

    asyncio.run(scenario())
    assert most == 1


def test_of_namespaces_that_do_not_wait_nothing_is_kept() -> None:
    async def scenario() -> None:
        controller = new_controller(exchange=lambda targets, wanted: CollectorAnswers(CaptureObservation()))
        for number in range(100):
            await controller._ask([replace(TARGET, namespace=f"ns-{number}")], CaptureExchange(id="c"))
            turn = controller._stacks_turn.setdefault(f"ns-{number}", asyncio.Lock())
            assert controller._stacks_turn[f"ns-{number}"] is turn
            del turn
        assert len(controller._not_before) <= 1
        assert not controller._stacks_turn

    asyncio.run(scenario())


def test_after_large_answers_a_namespace_waits_before_the_next_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[str] = []

    def exchange(targets: Sequence[HeartbeatTarget], wanted: CaptureExchange) -> CollectorAnswers:
        observed.append(targets[0].namespace)
        return CollectorAnswers(CaptureObservation(), size=10**12)

    async def write(controller: CaptureController, capture: TraceCapture, status: TraceCaptureStatus) -> bool:
        return True

    monkeypatch.setattr(CaptureController, "_write", write)
    controller, _ = with_collector()
    controller.exchange = exchange
    (known,) = controller.cache.jobs.all()
    capture = TraceCapture.model_validate(capture_document("a", job="llama"))

    def of(namespace: str) -> TraceCapture:
        return capture.model_copy(update={"metadata": capture.metadata.model_copy(update={"namespace": namespace})})

    async def scenario() -> None:
        for _ in range(3):
            await controller._reconcile(of(known.name.namespace), known)
        await controller._reconcile(of("other"), known)

    asyncio.run(scenario())
    assert len(observed) == 2


def test_after_large_answers_ranks_without_a_step_are_not_asked_again_at_once() -> None:
    requests = 0

    def exchange(targets: object, wanted: CaptureExchange) -> CollectorAnswers:
        nonlocal requests
        requests += 1
        return CollectorAnswers(CaptureObservation(), size=10**12)

    controller, _ = with_collector()
    controller.exchange = exchange
    controller.events = cast(Any, SimpleNamespace(stalled={UID}, record=lambda event: None))

    async def scenario() -> None:
        await controller._reconcile_all()
        await asyncio.wait(controller._tasks.values(), timeout=0.5)
        for task in controller._tasks.values():
            task.cancel()

    asyncio.run(scenario())
    assert requests == 1


@pytest.mark.parametrize("is_stalled", [True, False])
def test_the_ranks_of_a_job_that_made_no_step_are_requested_once_and_an_event_says_where_they_are(
    is_stalled: bool,
) -> None:
    sent, recorded = list[CaptureExchange](), list[RecordEvent]()
    stacks = tuple(HungRank(rank, (f"f (a.py:{rank})",), world_size=2) for rank in range(2))

    def exchange(targets: object, wanted: CaptureExchange) -> CollectorAnswers:
        sent.append(wanted)
        return CollectorAnswers(CaptureObservation(stacks=stacks))

    async def describe(lines: object) -> str:
        return "rank 1 is in f (a.py:1)"

    message = "no step for 12 min after step 7; to see where its ranks are: muster trace llama --stacks"
    condition = {"type": "Stalled", "status": str(is_stalled), "reason": "NoStep", "message": message}
    times = {"lastTransitionTime": "2026-11-21T10:00:00Z", "observedGeneration": 1}
    controller, _ = with_collector(conditions=[condition | times])
    controller.hangs = HangSentences(lambda: None, describe)
    controller.exchange = exchange
    controller.events = cast(Any, SimpleNamespace(stalled={UID, "deleted"}, record=recorded.append))

    async def scenario() -> None:
        await controller._reconcile_all()
        await asyncio.gather(*controller._tasks.values())
        await controller._reconcile_all()
        assert not controller._tasks

    asyncio.run(scenario())
    (wanted,) = sent
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9.-]{0,79}", wanted.id)
    where = "no step for 12 min after step 7; rank 1 is in f (a.py:1)"
    assert recorded == ([RecordEvent(UID, "Warning", "RanksStalled", where)] if is_stalled else [])
    assert controller.events.stalled == set()
