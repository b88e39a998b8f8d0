"""Pods of batch Jobs that queue, in the operator's cache, and what follows for their Job."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.operator.caches import FakeDryRuns
from tests.operator.objects import job_seen as training_job_seen
from tests.operator.objects import read, template

from muster.api.spec import NodePods, QueueingStatus, RolePlacementStatus
from muster.cluster import RemoveJob
from muster.kinds.suspended.table import ATTEMPT_LABEL, BATCH_JOB, JOB_SET, OBJECT_ANNOTATION
from muster.kube.objects import RawQueuedObject, V1Pod
from muster.workload import transitions
from muster.workload.observation import Observation
from muster.workload.placement import from_status
from muster.workload.reconcile import reconcile
from muster.workload.timeouts import Timeouts
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.runners.create_pods.pod_owner import pod_owner

PLACEMENT = [RolePlacementStatus(role="pods", flavor="h", nodes=[NodePods(node="n1", indexes="0-1")])]


def admitted_job(version: int = 1, **meta: Any) -> tuple[ClusterCache, RawQueuedObject]:
    """A Job of two pods that was admitted."""
    cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 1000.0, kinds=[BATCH_JOB])
    job = job_seen(version, **meta)
    cache.objects.handlers[0].on_upsert(job)
    admitted = transitions.admit(QueueingStatus(), from_status(PLACEMENT), 900.0)
    cache.objects.on_status_written("uid-a", admitted, 2, "q")
    cache.observe()
    return cache, job


def job_seen(version: int = 1, **meta: Any) -> RawQueuedObject:
    named = {"name": "a", "namespace": "team", "uid": "uid-a", "labels": {"muster.dev/queue": "q"}, **meta}
    wanted = {"suspend": False, "parallelism": 2, "completions": 1000, "template": template()}
    return read(RawQueuedObject, {"metadata": {**named, "resourceVersion": str(version)}, "spec": wanted})


def completed(name: str, version: int) -> V1Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "uid": "uid-a", "name": "a", "controller": True}
    meta: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    meta |= {"labels": {ATTEMPT_LABEL: "0"}, "ownerReferences": [owner]}
    spec = {**template()["spec"], "nodeName": "n1"}
    return read(V1Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Succeeded"}})


def test_a_deleted_job_with_a_finalizer_has_ended_once_its_completed_pods_are_gone() -> None:
    cache, _ = admitted_job()
    pod = completed("a-x1", 5)
    cache.pods.on_upsert(pod)
    cache.observe()
    cache.objects.handlers[0].on_upsert(
        job_seen(6, deletionTimestamp="2026-11-21T10:00:00Z", finalizers=["team.io/archive"])
    )
    cache.pods.on_delete(pod)
    observed = cache.observe()
    (workload,) = observed.workloads
    result = reconcile(workload, Observation(1000.0, observed.pods.get("uid-a", ())), Timeouts())
    assert result.status.phase == "Cancelled"
    assert result.writes[-1:] == (RemoveJob("uid-a"),)


def test_the_completed_pods_of_a_job_that_were_deleted_are_not_remembered() -> None:
    """A Job may run any number of pods one after the other."""
    cache, _ = admitted_job()
    for number in range(10):
        pod = completed(f"a-{number}", 5 + number)
        cache.pods.on_upsert(pod)
        assert [view.phase for view in cache.observe().pods["uid-a"]] == ["Succeeded"]
        cache.pods.on_delete(pod)
    assert cache.observe().pods == {}


def test_of_a_job_with_too_many_values_only_the_error_is_kept() -> None:
    """Such templates take the operator a tenth of a second each, and any user may create many of them."""
    cache, _ = admitted_job()
    tolerations = [{"key": f"example.com/{number}"} for number in range(5000)]
    job = job_seen(7, uid="uid-b", name="b")
    job.spec = msgspec.Raw(json.dumps({"suspend": True, "template": template(tolerations=tolerations)}).encode())
    cache.objects.handlers[0].on_upsert(job)
    (known,) = (one for one in cache.objects.all() if one.uid == "uid-b")
    assert known.object.error == "spec must have at most 5,000 values; got more"
    assert (known.object.state.suspend, known.object.state.pod_sets) == (True, ())


def test_a_label_that_changes_while_an_admission_is_written_does_not_move_it_to_another_queue() -> None:
    cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 1000.0, kinds=[BATCH_JOB])
    cache.objects.handlers[0].on_upsert(job_seen())
    admitted = transitions.admit(QueueingStatus(), from_status(PLACEMENT), 900.0)
    cache.objects.handlers[0].on_upsert(job_seen(3, labels={"muster.dev/queue": "other"}))
    cache.objects.on_status_written("uid-a", admitted, 2, "q")
    (workload,) = cache.observe().workloads
    assert workload.queue == "q"


def test_a_pod_that_names_a_training_job_as_its_object_is_none_of_its_pods() -> None:
    """Its pods are known by their names: another one would take the place of one of them."""
    cache = ClusterCache(FakeDryRuns(), pod_owner, lambda: None, clock=lambda: 1000.0, kinds=[JOB_SET])
    cache.jobs.on_upsert(training_job_seen())
    cache.observe()
    meta: dict[str, Any] = {"name": "x", "namespace": "team", "uid": "uid-x", "resourceVersion": "5"}
    meta |= {"labels": {ATTEMPT_LABEL: "0"}, "annotations": {OBJECT_ANNOTATION: "uid-llama/trainer/llama"}}
    spec = {**template()["spec"], "nodeName": "n1"}
    cache.pods.on_upsert(read(V1Pod, {"metadata": meta, "spec": spec, "status": {"phase": "Succeeded"}}))
    assert cache.observe().pods == {}


def test_a_pod_whose_labels_a_user_takes_off_still_belongs_to_its_object() -> None:
    """Else its Job would be resumed while that pod still terminates, again and again."""
    cache, _ = admitted_job()
    pod = completed("a-x1", 5)
    pod.status.phase = "Running"
    cache.pods.on_upsert(pod)
    assert len(cache.observe().pods["uid-a"]) == 1
    bare = completed("a-x1", 6)
    bare.status.phase, bare.metadata.labels = "Running", {}
    cache.pods.on_upsert(bare)
    assert [view.attempt for view in cache.observe().pods["uid-a"]] == [0]
    other = completed("a-x1", 7)
    other.status.phase, other.metadata.labels = "Running", {ATTEMPT_LABEL: "9"}
    cache.pods.on_upsert(other)
    assert [view.attempt for view in cache.observe().pods["uid-a"]] == [0]
