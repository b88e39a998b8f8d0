import asyncio

import pytest
from benchmarks.scale.contender import WaitReason
from benchmarks.scale.peers.rejections import rejection


def pod(name: str, message: str) -> dict[str, object]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"kind": "Pod", "metadata": {"name": name}, "status": {"conditions": [condition]}}


def test_a_pods_condition_is_a_refusal() -> None:
    assert rejection(pod("late-0-3", "0/500 nodes are available"), "late-0") == (
        "Pod PodScheduled=False Unschedulable",
        "0/500 nodes are available",
    )


def test_what_is_said_of_another_job_is_none() -> None:
    assert rejection(pod("fill-7-0", "0/500 nodes are available"), "late-0") is None


def test_an_event_about_the_group_is_one() -> None:
    event = {
        "metadata": {"name": "late-0.18a"},
        "involvedObject": {"kind": "PodGroup", "name": "late-0"},
        "reason": "Unschedulable",
        "message": "queue resource quota insufficient",
    }

    assert rejection(event, "late-0") == ("event Unschedulable of PodGroup", "queue resource quota insufficient")


def test_an_event_that_says_that_a_pod_was_placed_is_none() -> None:
    event = {
        "metadata": {"name": "late-0-0.18a"},
        "involvedObject": {"kind": "Pod", "name": "late-0-0"},
        "reason": "Scheduled",
        "message": "Successfully assigned bench/late-0-0 to node-1",
    }

    assert rejection(event, "late-0") is None


def test_an_event_that_says_that_pods_are_still_to_come_is_none() -> None:
    event = {
        "metadata": {"name": "late-0.18b"},
        "involvedObject": {"kind": "PodGroup", "name": "late-0"},
        "reason": "NotReady",
        "message": "Job is not ready for scheduling. Waiting for 10 pods, currently 1 exist, 0 are gated",
    }

    assert rejection(event, "late-0") is None


def test_a_workload_without_quota_is_one_and_one_with_quota_is_none() -> None:
    def workload(status: str, message: str) -> dict[str, object]:
        condition = {"type": "QuotaReserved", "status": status, "reason": "Pending", "message": message}
        return {"kind": "Workload", "metadata": {"name": "job-late-0-1a2b"}, "status": {"conditions": [condition]}}

    assert rejection(workload("False", "80 more needed"), "late-0") == (
        "Workload QuotaReserved=False Pending",
        "80 more needed",
    )
    assert rejection(workload("True", "Quota reserved"), "late-0") is None


def test_a_group_of_which_nothing_was_said_yet_is_none() -> None:
    assert rejection({"kind": "PodGroup", "metadata": {"name": "late-0"}}, "late-0") is None


def test_the_first_time_and_the_newest_words_are_kept() -> None:
    reason = WaitReason()
    reason.record("InsufficientResources", "first")
    first_at = reason.seen_at
    reason.record("InsufficientResources", "position 1")

    assert (str(reason), reason.seen_at) == ("InsufficientResources: position 1", first_at)
    asyncio.run(reason.first_seen(limit_s=1.0))


def test_waiting_for_a_reason_that_never_comes_times_out() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(WaitReason().first_seen(limit_s=0.01))
