"""Workloads whose objects are gone, or have lost their label: they are to be deleted."""

from __future__ import annotations

from typing import Any

from tests.operator.objects import read, template

from muster.kinds.suspended.table import BATCH_JOB, JOB_SET, QUEUE_LABEL, TRAIN_JOB
from muster.kube.objects import RawCustomObject, RawQueuedObject
from muster_operator.cache.cached_object import record_name
from muster_operator.cache.objects import ObjectCache


def cache_after_a_restart(api_version: str = "jobset.x-k8s.io/v1alpha2") -> ObjectCache:
    """One that has seen the Workload of JobSet `a`, and nothing else."""
    cache = ObjectCache((TRAIN_JOB, JOB_SET), dict, lambda uid, seen: None, lambda: None)
    meta = {"name": record_name(JOB_SET, "a", "u-a"), "namespace": "team", "uid": "u-w", "resourceVersion": "5"}
    reference = {"apiVersion": api_version, "kind": "JobSet", "name": "a", "uid": "u-a"}
    document: dict[str, Any] = {"metadata": meta, "spec": {"objectRef": reference, "queue": "q"}, "status": {}}
    cache.statuses.on_upsert(read(RawCustomObject, document))
    return cache


def left(cache: ObjectCache) -> list[str]:
    return [one.spec.object_ref.name for one in cache.without_object()]


def see_job_set(cache: ObjectCache, **labels: str) -> None:
    job = {"name": "node", "replicas": 1, "template": {"spec": {"template": template()}}}
    meta = {"name": "a", "namespace": "team", "uid": "u-a", "resourceVersion": "7", "labels": labels}
    seen = read(RawQueuedObject, {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": [job]}})
    handler = next(one for one in cache.handlers if one.row == JOB_SET)
    handler.on_upsert(seen)


def test_the_workload_of_an_object_that_has_the_label_stays_and_of_one_without_it_is_left() -> None:
    """JobSets are watched without the label too where they show the pods of TrainJobs."""
    cache = cache_after_a_restart()
    assert left(cache) == [], "not listed yet"
    see_job_set(cache, **{QUEUE_LABEL: "q"})
    assert left(cache) == []
    cache = cache_after_a_restart()
    see_job_set(cache)
    assert left(cache) == ["a"]


def test_the_workload_of_an_object_of_an_earlier_version_of_its_kind_is_left_once_that_is_gone() -> None:
    cache = cache_after_a_restart("jobset.x-k8s.io/v1alpha1")
    for handler in cache.handlers:
        handler.on_list(set(), 9)
    assert left(cache) == ["a"]


def test_the_workload_of_a_kind_that_does_not_queue_any_more_is_left() -> None:
    cache = ObjectCache((BATCH_JOB,), dict, lambda uid, seen: None, lambda: None)
    meta = {"name": record_name(JOB_SET, "a", "u-a"), "namespace": "team", "uid": "u-w", "resourceVersion": "5"}
    reference = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "a", "uid": "u-a"}
    document: dict[str, Any] = {"metadata": meta, "spec": {"objectRef": reference, "queue": "q"}, "status": {}}
    cache.statuses.on_upsert(read(RawCustomObject, document))
    assert left(cache) == ["a"]


def test_the_workload_of_a_child_that_was_seen_before_its_owner_is_left_once_the_owner_is_seen() -> None:
    """Watches of two kinds deliver in no order: a labelled TrainJob's JobSet, itself labelled, may come first."""
    cache = cache_after_a_restart()
    job = {"name": "node", "replicas": 1, "template": {"spec": {"template": template()}}}
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "t", "uid": "u-t"}
    meta = {
        "name": "a", "namespace": "team", "uid": "u-a", "resourceVersion": "7", "labels": {QUEUE_LABEL: "q"},
        "ownerReferences": [{**owner, "controller": True}],
    }  # fmt: skip
    handlers = {handler.row: handler for handler in cache.handlers}
    handlers[JOB_SET].on_upsert(
        read(RawQueuedObject, {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": [job]}})
    )
    assert left(cache) == []
    train = {"name": "t", "namespace": "team", "uid": "u-t", "resourceVersion": "6", "labels": {QUEUE_LABEL: "q"}}
    handlers[TRAIN_JOB].on_upsert(read(RawQueuedObject, {"metadata": train, "spec": {"suspend": True}}))
    assert left(cache) == ["a"]
