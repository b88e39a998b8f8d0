"""A TrainJob asks for what the JobSet of its controller shows, and for nothing that users make up."""

from __future__ import annotations

from typing import Any

from tests.operator.objects import read, template

from muster.kinds.suspended.table import BATCH_JOB, TRAIN_JOB
from muster.kube.objects import RawQueuedObject
from muster_operator.cache.objects import ObjectCache


def train_job(cache: ObjectCache) -> None:
    meta = {"name": "a", "namespace": "team", "uid": "u-a", "resourceVersion": "1"}
    meta |= {"labels": {"muster.dev/queue": "q"}}  # type: ignore[dict-item]
    cache.handlers[0].on_upsert(read(RawQueuedObject, {"metadata": meta, "spec": {"suspend": True}}))


def job_set(
    cache: ObjectCache, name: str, namespace: str, role: str, version: int, handler: Any = None
) -> RawQueuedObject:
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "uid": "u-a", "name": "a"}
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"u-{namespace}-{name}"}
    meta |= {"resourceVersion": str(version), "ownerReferences": [{**owner, "controller": True}]}
    job = {"name": role, "replicas": 1, "template": {"spec": {"template": template()}}}
    seen = read(RawQueuedObject, {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": [job]}})
    (handler or cache.handlers[1]).on_upsert(seen)
    return seen


def roles(cache: ObjectCache) -> list[str]:
    (one,) = cache.workloads()
    return [role.name for role in one.roles()]


def test_only_the_object_of_its_own_name_and_namespace_shows_the_pods_of_another() -> None:
    """Pods of a template that is not shown would get no gate."""
    namespaces = {"team": {"muster.dev/queueing": "enabled"}}
    cache = ObjectCache((TRAIN_JOB,), lambda: namespaces, lambda uid, seen: None, lambda: None)
    job_set(cache, "a", "other", "launcher", 2)
    train_job(cache)
    assert roles(cache) == []
    job_set(cache, "a", "team", "node", 3)
    assert roles(cache) == ["node"]
    job_set(cache, "b", "team", "launcher", 4)
    made_up = job_set(cache, "a", "other", "launcher", 5)
    assert roles(cache) == ["node"]
    cache.handlers[1].on_delete(made_up)
    assert roles(cache) == ["node"]


def test_a_job_of_a_job_set_of_a_train_job_does_not_queue_although_it_has_the_label() -> None:
    """Only the outermost object does, however many are between them."""
    namespaces = {"team": {"muster.dev/queueing": "enabled"}}
    cache = ObjectCache((TRAIN_JOB, BATCH_JOB), lambda: namespaces, lambda uid, seen: None, lambda: None)
    train_job(cache)
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "uid": "u-team-a", "name": "a"}
    meta: dict[str, Any] = {"name": "a-node-0", "namespace": "team", "uid": "u-job", "resourceVersion": "3"}
    meta |= {"labels": {"muster.dev/queue": "q"}, "ownerReferences": [{**owner, "controller": True}]}
    jobs, job_sets = (next(one for one in cache.handlers if one.row.kind == kind) for kind in ("Job", "JobSet"))
    jobs.on_upsert(read(RawQueuedObject, {"metadata": meta, "spec": {"suspend": True, "template": template()}}))
    assert {one.kind for one in cache.workloads()} == {"TrainJob", "Job"}, "its owner is not known yet"
    job_set(cache, "a", "team", "node", 4, handler=job_sets)
    assert {one.kind for one in cache.workloads()} == {"TrainJob"}
