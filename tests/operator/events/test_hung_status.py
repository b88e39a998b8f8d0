"""The sentence about ranks that did not stop: in the status of a job that stalled, and as an Event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from tests.operator.caches import FakeDryRuns
from tests.operator.objects import job_document, pod_seen, read

from muster.api import spec
from muster.capture.describe import describe_pods
from muster.capture.exchange import encode_ranks
from muster.capture.protocol import HungRank
from muster.cluster import ObjectWrites, RecordEvent, WriteStatus
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.objects import RawCustomObject, V1ContainerStatus
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.hang_sentences import HangSentences
from muster_operator.job_status import hung_rank_writes
from muster_operator.runners.create_pods.pod_owner import pod_owner

UID = "uid-llama"


def cache(failure: dict[str, str] | None, stop: dict[str, object] | None = None) -> ClusterCache:
    made = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 2e9)
    document = job_document(version=1)
    status = {"startedAt": "2026-11-21T10:00:00Z", "lastFailure": failure, "lastStop": stop}
    status = {name: value for name, value in status.items() if value is not None}
    made.jobs.on_upsert(read(RawCustomObject, {**document, "status": status}))
    return made


def stalled(attempt: int = 0) -> dict[str, str]:
    return {"pod": pod_name("llama", UID, "trainer", 0, attempt), "reason": "Stalled", "logTail": "no step for 4 s"}


def end(made: ClusterCache, index: int, version: int, phase: str = "Failed", key: str = "hung") -> None:
    message = {"traces": 0, key: encode_ranks([HungRank(index, (f"f{index} (a.py:1)",))])}
    pod = pod_seen(version=version, owner=UID, slot=(index, 0), phase=phase)
    ended = {"name": "muster-collector", "state": {"terminated": {"exitCode": 0, "message": json.dumps(message)}}}
    pod.status.init_container_statuses = [read(V1ContainerStatus, ended)]
    made.pods.on_upsert(pod)


async def describe(lines: Sequence[bytes]) -> str:
    return describe_pods(lines)


def writes(made: ClusterCache, sentences: HangSentences) -> list[ObjectWrites]:
    """What is to be written once all sentences are known."""

    async def scenario() -> list[ObjectWrites]:
        found = hung_rank_writes(made, sentences)
        await asyncio.gather(*sentences._tasks)
        return found or hung_rank_writes(made, sentences)

    return asyncio.run(scenario())


def test_once_all_pods_have_ended_the_sentence_is_below_the_stall_and_an_event() -> None:
    made, sentences = cache(stalled()), HangSentences(lambda: None, describe)
    end(made, 0, 2)
    made.pods.on_upsert(pod_seen(version=3, owner=UID, slot=(1, 0), phase="Running"))
    assert writes(made, sentences) == []
    end(made, 1, 4)
    ((write, event),) = (one.writes for one in writes(made, sentences))
    assert isinstance(write, WriteStatus)
    assert isinstance(event, RecordEvent)
    assert isinstance(write.status, spec.TrainingJobStatus)
    failure = write.status.last_failure
    assert failure is not None
    first, sentence = failure.log_tail.splitlines()
    assert (first, event.reason) == ("no step for 4 s", "RanksDidNotStop")
    assert "rank 0 in pod" in sentence
    assert "is in f1 (a.py:1)" in sentence
    assert sentence in event.message
    assert writes(made, sentences) != []  # until the job has that status
    document = job_document(version=9)
    status = write.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    made.jobs.on_upsert(read(RawCustomObject, {**document, "status": status}))
    assert writes(made, sentences) == []
    assert made.hung_ranks.pending() == []


def test_ranks_that_did_not_stop_for_another_reason_have_an_event_only() -> None:
    for failure in (None, {**stalled(), "reason": "Error"}, stalled(attempt=3)):
        made, sentences = cache(failure), HangSentences(lambda: None, describe)
        end(made, 0, 2)
        ((event,),) = (one.writes for one in writes(made, sentences))
        assert isinstance(event, RecordEvent)
        assert writes(made, sentences) == []


def test_where_ranks_were_at_sigterm_is_reported_after_a_stall_only() -> None:
    for failure in (None, stalled(attempt=3)):
        made, sentences = cache(failure), HangSentences(lambda: None, describe)
        end(made, 0, 2, key="signalled")
        assert writes(made, sentences) == []
    made, sentences = cache(stalled()), HangSentences(lambda: None, describe)
    end(made, 0, 2, key="signalled")
    ((_, event),) = (one.writes for one in writes(made, sentences))
    assert isinstance(event, RecordEvent)
    assert event.message.startswith("ranks of attempt 0 stalled: rank 0 in pod")


def stopped(*, saved: bool, ended: bool = True) -> dict[str, object]:
    times = {"at": "2026-11-21T10:10:00Z", "startedAt": "2026-11-21T10:00:00Z"}
    end = {"endedAt": "2026-11-21T10:10:20Z", "saved": saved} if ended else {}
    return {"attempt": 0, "reason": "Preempted", **times, **end}


def test_where_ranks_were_that_were_stopped_without_a_checkpoint_is_in_the_status_and_an_event() -> None:
    made, sentences = cache(None, stopped(saved=False)), HangSentences(lambda: None, describe)
    end(made, 0, 2, key="signalled")
    ((write, event),) = (one.writes for one in writes(made, sentences))
    assert isinstance(write, WriteStatus)
    assert isinstance(event, RecordEvent)
    assert isinstance(write.status, spec.TrainingJobStatus)
    assert write.status.last_stop is not None
    assert "is in f0 (a.py:1)" in write.status.last_stop.ranks
    assert (event.reason, event.message) == (
        "CheckpointNotSaved",
        f"attempt 0 saved no checkpoint; when it was stopped, {write.status.last_stop.ranks}",
    )


def test_where_ranks_were_is_not_said_if_a_checkpoint_was_saved_nor_before_that_is_decided() -> None:
    for ended in (True, False):
        made, sentences = cache(None, stopped(saved=True, ended=ended)), HangSentences(lambda: None, describe)
        end(made, 0, 2, key="signalled")
        assert writes(made, sentences) == []
        assert (made.hung_ranks.pending() == []) is ended


def test_an_invalid_message_changes_nothing() -> None:
    made = cache(stalled())
    pod = pod_seen(version=2, owner=UID, slot=(0, 0), phase="Failed")
    ended = {"name": "muster-collector", "state": {"terminated": {"exitCode": 0, "message": '{"hung": "xx"}'}}}
    pod.status.init_container_statuses = [read(V1ContainerStatus, ended)]
    made.pods.on_upsert(pod)
    assert writes(made, HangSentences(lambda: None, describe)) == []
    assert made.hung_ranks.pending() == []
