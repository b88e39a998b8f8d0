"""Messages of users are analysed in other processes, with limits, and tenants do not delay each other for long."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

import msgspec
import pytest
from tests.operator.caches import FakeDryRuns
from tests.operator.hostile_messages import hostile_message, hostile_ranks
from tests.operator.objects import job_document, pod_seen, read

from muster.capture.describe import HungPod, describe_pods
from muster.kube.objects import RawCustomObject, V1ContainerStatus
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.heartbeats import HungAttempt
from muster_operator.hang_sentences import HangSentences, describe_in_child
from muster_operator.job_status import hung_rank_writes
from muster_operator.runners.create_pods.pod_owner import pod_owner

PODS = 40


def cache_with_hostile_pods() -> ClusterCache:
    made = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 2e9)
    document = {**job_document(version=1), "status": {"startedAt": "2026-11-21T10:00:00Z"}}
    made.jobs.on_upsert(read(RawCustomObject, document))
    for index in range(PODS):
        pod = pod_seen(f"p-{index}", index + 2, owner="uid-llama", slot=(index, 0), phase="Failed")
        end = {"exitCode": 0, "message": hostile_message(64 * index)}
        ended = {"name": "muster-collector", "state": {"terminated": end}}
        pod.status.init_container_statuses = [read(V1ContainerStatus, ended)]
        made.pods.on_upsert(pod)
    return made


def test_the_operator_does_little_work_for_messages_that_are_expensive_to_analyse() -> None:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    async def never(lines: Sequence[bytes]) -> str:
        await asyncio.Event().wait()
        return ""

    async def scenario() -> None:
        sentences = HangSentences(lambda: None, never)
        sys.setprofile(count)
        try:
            made = cache_with_hostile_pods()
            for _ in range(10):
                assert hung_rank_writes(made, sentences) == []
                await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
        for task in sentences._tasks:
            task.cancel()

    asyncio.run(scenario())
    assert calls < 1000 * PODS


def test_such_messages_are_described_within_the_limits_of_the_process() -> None:
    lines = [msgspec.json.encode(HungPod(f"p-{i}", "n", hostile_ranks(64 * i))) for i in range(PODS)]
    sentence = asyncio.run(describe_in_child(lines, within_s=None))
    assert "never entered a 1 of group g" in sentence


def test_a_process_that_takes_too_long_is_stopped() -> None:
    assert asyncio.run(describe_in_child([], within_s=0.0)) == "what they waited for was not found out within 0 s"


def test_a_process_without_a_sentence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert asyncio.run(describe_in_child([])) == (
        "what they waited for was not found out: that takes more than 10 s of CPU and 1024 MiB of memory"
    )
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    assert "was not found out: " in asyncio.run(HangSentences(lambda: None).describe("a", []))


@pytest.mark.parametrize(("work", "end"), [("while True: pass", -signal.SIGKILL), ("x = bytearray(2 << 30)", 1)])
def test_the_process_ends_at_its_limits(work: str, end: int) -> None:
    program = f"from muster.capture import describe as d; d.CPU_S = 1; d._limit_this_process()\n{work}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == end
    assert end < 0 or done.stderr.endswith("MemoryError\n")


def test_lines_that_are_no_pods_are_left_out() -> None:
    assert describe_pods([b"", b"[", b"{}", b'{"pod": 1}', b"[" * 100_000, b'{"pod": "p", "message": "x"}']) == ""
    assert describe_pods([b"x", b'{"pod": "p", "ranks": [{"rank": 3, "frames": ["f (a.py:1)"]}]}']) == (
        "rank 3 in pod p is in f (a.py:1)"
    )


def test_namespaces_take_turns() -> None:
    order: list[str] = []

    async def describe(lines: Sequence[bytes]) -> str:
        await asyncio.sleep(0)
        order.append(lines[0].decode())
        return ""

    async def scenario() -> None:
        sentences = HangSentences(lambda: None, describe)
        names = [("a", b"a1"), ("a", b"a2"), ("a", b"a3"), ("b", b"b1")]
        await asyncio.gather(*(sentences.describe(namespace, [line]) for namespace, line in names))

    asyncio.run(scenario())
    assert order == ["a1", "b1", "a2", "a3"]


def test_a_namespace_whose_analyses_take_long_waits_before_the_next_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = 1000.0, list[float]()

    async def describe(lines: Sequence[bytes]) -> str:
        nonlocal now
        now += 5.0
        return ""

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def scenario() -> None:
        sentences = HangSentences(lambda: None, describe)
        for namespace in ("a", "a", "b"):
            await sentences.describe(namespace, [])

    asyncio.run(scenario())
    assert slept == [0.0, 30.0, 0.0]


def test_of_namespaces_without_a_sentence_to_find_nothing_is_kept() -> None:
    async def describe(lines: Sequence[bytes]) -> str:
        return ""

    async def scenario() -> None:
        sentences = HangSentences(lambda: None, describe)
        for number in range(100):
            await sentences.describe(f"ns-{number}", [])
        assert sentences._shares == {}

    asyncio.run(scenario())


def test_a_namespace_with_too_many_jobs_that_wait_gets_no_more_sentences() -> None:
    async def never(lines: Sequence[bytes]) -> str:
        await asyncio.Event().wait()
        return ""

    async def scenario() -> None:
        sentences, found = HangSentences(lambda: None, never), ""
        for number in range(201):
            sentences.get(f"u-{number}", "a", HungAttempt(0))
        await asyncio.sleep(0)
        found = sentences.get("u-200", "a", HungAttempt(0)) or ""
        assert "200 jobs of the namespace wait for it already" in found
        assert sentences.get("u-0", "a", HungAttempt(0)) is None
        for task in sentences._tasks:
            task.cancel()

    asyncio.run(scenario())
