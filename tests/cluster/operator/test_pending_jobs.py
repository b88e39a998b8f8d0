"""Pending jobs and their reasons: gangs, quota, priorities, and missing objects."""

from __future__ import annotations

import json
import time

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import GROUP, Pool
from tests.cluster.operator.process import Operator


def test_a_gang_starts_whole_or_not_at_all(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.set_quota("all", 100)
    pool.submit("first", pods=6)
    pool.wait_for_phase("first", "Running")
    pool.submit("second", pods=3)
    assert "3" in pool.wait_for_reason("second", "InsufficientResources")
    assert pool.pods("second") == []
    pool.delete("first")
    pool.wait_for_phase("second", "Running")


def test_a_job_beyond_quota_waits_with_a_position_and_starts_when_others_end(pool: Pool, operator: Operator) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("big", pods=8)
    pool.wait_for_phase("big", "Running")
    for name in ("w1", "w2"):
        pool.submit(name, pods=8)
        pool.wait(f"{name} waits", lambda name=name: bool(pool.waits_for(name)))  # type: ignore[misc]
        time.sleep(1.1)  # the API server dates in whole seconds, and the first of two is the older one
    live = {row["name"]: row for row in json.loads(operator.get(f"/positions?namespace={pool.namespace}")[1])["items"]}
    assert (live["w1"]["position"], live["w2"]["position"]) == (1, 2)
    assert pool.status("w1")["queuePosition"] == 1
    pool.end("big")
    pool.wait_for_phase("w1", "Running")
    assert pool.waits_for("w2")


def test_a_job_starts_once_the_job_it_depends_on_has_ended(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    later = "2100-01-01T00:00:00Z"
    pool.submit("then", pods=1, dependsOn=[{"job": "first"}], beginTime="2026-01-01T00:00:00Z", startDeadline=later)
    pool.submit("never", pods=1, dependsOn=[{"job": "first", "outcome": "NotSucceeded"}], cancelIfUnsatisfiable=True)
    pool.wait_for_reason("then", "DependencyNotFound")
    pool.submit("first", pods=1, ttlSecondsAfterFinished=0)
    assert "first" in pool.wait_for_reason("then", "WaitingForDependency")
    pool.wait_for_phase("first", "Running")
    pool.end("first")
    pool.wait_for_phase("then", "Running")
    pool.wait_for_phase("never", "Cancelled")
    (ended,) = pool.status("then")["dependencies"]
    assert (ended["job"], ended["phase"]) == ("first", "Succeeded")
    pool.wait("first is removed", lambda: pool.get("first") is None)
    with pytest.raises(Refused, match="must be after beginTime"):
        pool.submit("odd", pods=1, beginTime=later, startDeadline=later)


@pytest.mark.smoke
def test_a_higher_priority_preempts_and_the_victim_restarts_later(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("low", pods=8, does={"stop_seconds": 1})
    pool.wait_for_phase("low", "Running")
    pool.submit("high", pods=8, priority=10)
    pool.wait_for_phase("high", "Running")
    low = pool.status("low")
    assert (low["phase"], low.get("restarts", 0), pool.attempt("low")) == ("Pending", 0, 1)
    pool.wait_for_event("low", "Preempted")
    evicted, admitted = pool.condition("low", "Evicted"), pool.condition("high", "Admitted")
    assert evicted["lastTransitionTime"] <= admitted["lastTransitionTime"]
    pool.delete("high")
    pool.wait_for_phase("low", "Running")


def test_a_guarantee_is_reclaimed_from_a_borrower(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("borrower", pods=8, queue="red", does={"stop_seconds": 1})
    pool.wait_for_phase("borrower", "Running")
    pool.submit("owner", pods=4, queue="blue")
    pool.wait_for_phase("owner", "Running")
    pool.wait_for_event("borrower", "Reclaimed")


def test_a_raised_quota_lets_a_waiting_job_start(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    for name in ("all", "red", "blue"):
        pool.set_quota(name, 1)
    pool.submit("patient", pods=4)
    pool.wait("it waits for quota", lambda: pool.waits_for("patient") in ("LargerThanQuota", "QuotaExceeded"))
    pool.set_quota("all", 8)
    pool.wait_for_phase("patient", "Running")


def test_a_lowered_quota_evicts_no_job(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("runner", pods=4)
    pool.wait_for_phase("runner", "Running")
    pool.set_quota("red", 0)
    pool.set_quota("all", 1)
    pool.submit("late", pods=1)
    pool.wait("it waits for quota", lambda: bool(pool.waits_for("late")))
    assert pool.phase("runner") == "Running"


def test_a_job_waits_for_its_queue_and_starts_when_there_is_one(pool: Pool) -> None:
    pool.set_up()
    pool.submit("early", queue="green")
    assert pool.queue("green") in pool.wait_for_reason("early", "QueueNotFound")
    pool.add_queue("green", "all", 1)
    pool.wait_for_phase("early", "Running")


def test_a_namespace_that_the_queue_does_not_select_cannot_use_it(pool: Pool) -> None:
    pool.set_up()
    pool.edit_queue("all", namespaceSelector={"matchLabels": {"org": pool.namespace}})
    pool.submit("stranger")
    assert pool.namespace in pool.wait_for_reason("stranger", "QueueNotAllowed")
    pool.api.patch(f"/api/v1/namespaces/{pool.namespace}", {"metadata": {"labels": {"org": pool.namespace}}})
    pool.wait_for_phase("stranger", "Running")


def test_a_job_waits_for_a_missing_priority_class_and_its_value_is_shown(pool: Pool) -> None:
    pool.set_up()
    classes, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"{pool.namespace}-high"
    pool.submit("urgent", priorityClassName=name)
    assert name in pool.wait_for_reason("urgent", "PriorityClassNotFound")
    assert pool.pods() == []
    pool.api.create(classes, {"metadata": {"name": name}, "value": 700})
    try:
        pool.wait_for_phase("urgent", "Running")
        pool.wait("the priority is shown", lambda: pool.status("urgent").get("priority") == 700)
    finally:
        pool.api.delete(f"{classes}/{name}")


def test_a_job_waits_for_a_topology_level_that_the_flavor_lacks(pool: Pool) -> None:
    pool.set_up()
    pool.submit("choosy", topology={"required": "island"})
    assert "island" in pool.wait_for_reason("choosy", "UnknownTopologyLevel")
    levels = [{"name": "island", "nodeLabel": "example.com/rack"}]
    pool.api.patch(f"{GROUP}/flavors/{pool.namespace}", {"spec": {"topology": levels}})
    pool.wait_for_phase("choosy", "Running")


def test_a_job_larger_than_the_cluster_waits_for_nodes(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    pool.set_quota("all", 100)
    pool.submit("huge", pods=8)
    assert "4" in pool.wait_for_reason("huge", "LargerThanCluster")
    pool.add_nodes(1)
    pool.wait_for_phase("huge", "Running")


def test_a_pod_that_the_api_server_rejects_is_reported_before_admission(pool: Pool) -> None:
    pool.set_up()
    pool.submit("no-account", pod={"serviceAccountName": "robot"})
    assert "robot" in pool.wait_for_reason("no-account", "PodRejected")
    assert pool.pods() == []
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/serviceaccounts", {"metadata": {"name": "robot"}})
    pool.wait_for_phase("no-account", "Running")


def test_a_gang_whose_service_is_rejected_has_an_event_and_delays_no_other(pool: Pool) -> None:
    pool.set_up()
    path = f"/api/v1/namespaces/{pool.namespace}/resourcequotas"
    pool.api.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}})
    pool.wait("the API server goes by it", lambda: not may_create_a_service(pool))
    pool.submit("gang", pods=2)
    pool.wait("an Event tells", lambda: "PodRejected" in pool.events("gang"))
    pool.submit("single", pods=1)
    pool.wait_for_phase("single", "Running")
    assert pool.pods("gang") == []
    pool.api.delete(f"{path}/none")
    pool.wait_for_phase("gang", "Running")


def may_create_a_service(pool: Pool) -> bool:
    service = {"metadata": {"generateName": "try-"}, "spec": {"ports": [{"port": 1}]}}
    try:
        pool.api.create(f"/api/v1/namespaces/{pool.namespace}/services?dryRun=All", service)
    except Refused as refused:
        return refused.code != 403
    return True


def test_an_empty_overhead_does_not_keep_a_job_from_starting(pool: Pool) -> None:
    """The API server would refuse the pod: an overhead belongs to a RuntimeClass, even an empty one."""
    pool.set_up()
    pool.submit("plain", pods=1, pod={"overhead": {}})
    pool.wait_for_phase("plain", "Running")


def test_requests_that_the_api_server_adds_to_a_pod_count(pool: Pool) -> None:
    """A LimitRange gives containers without a request one: two such pods fill a node of this size."""
    pool.set_up(nodes=1, gpus=4, cpu="4")
    limits = {"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "2"}, "default": {"cpu": "2"}}]}}
    pool.api.create(f"/api/v1/namespaces/{pool.namespace}/limitranges", {"metadata": {"name": "l"}, **limits})
    pool.submit("two", pods=2)
    pool.wait_for_phase("two", "Running")
    pool.submit("third", pods=1)
    assert "core" in pool.wait_for_reason("third", "InsufficientResources")


def test_a_suspended_job_that_is_resumed_in_a_deleted_queue_fails_and_the_queue_is_removed(pool: Pool) -> None:
    pool.set_up()
    pool.submit("sleeper", suspend=True)
    pool.wait_for_phase("sleeper", "Suspended")
    path = f"{GROUP}/queues/{pool.queue('red')}"
    # The operator writes the finalizer at the end of a cycle, after the phases of jobs.
    pool.wait("the queue has the finalizer", lambda: bool(pool.api.get(path)["metadata"].get("finalizers")))
    pool.api.delete(path)
    assert pool.api.get(path)["metadata"]["deletionTimestamp"]
    pool.edit("sleeper", suspend=False)
    pool.wait_for_phase("sleeper", "Failed")
    assert pool.condition("sleeper", "Failed")["reason"] == "QueueDeleted"
    pool.wait(
        "the queue is gone",
        lambda: pool.queue("red") not in {q["metadata"]["name"] for q in pool.api.items(f"{GROUP}/queues")},
    )


def test_a_waiting_job_of_a_namespace_that_a_queue_does_not_select_does_not_keep_it_from_deletion(pool: Pool) -> None:
    pool.set_up()
    pool.submit("runner", queue="blue")
    pool.wait_for_phase("runner", "Running")
    for name in ("red", "blue"):
        pool.edit_queue(name, namespaceSelector={"matchLabels": {"team": "another"}})
    pool.submit("stranger")
    pool.wait_for_reason("stranger", "QueueNotAllowed")
    pool.submit("sleeper", suspend=True)
    pool.wait_for_phase("sleeper", "Suspended")
    red, blue = (f"{GROUP}/queues/{pool.queue(name)}" for name in ("red", "blue"))
    for path in (blue, red):
        pool.api.delete(path)
    pool.wait("the queue is gone", lambda: pool.api.gone(red))
    pool.wait_for_reason("stranger", "QueueNotFound")
    assert not pool.api.gone(blue), "its job has capacity"
    assert pool.phase("runner") == "Running"


def test_a_deleted_queue_stays_until_no_unfinished_job_names_it(pool: Pool) -> None:
    pool.set_up()
    pool.submit("runner")
    pool.wait_for_phase("runner", "Running")
    path = f"{GROUP}/queues/{pool.queue('red')}"
    pool.api.delete(path)
    pool.submit("late")
    pool.wait_for_reason("late", "QueueInactive")
    assert not pool.api.gone(path)
    assert pool.phase("runner") == "Running"
    pool.delete("runner")
    pool.delete("late")
    pool.wait("the queue is gone", lambda: pool.api.gone(path))
