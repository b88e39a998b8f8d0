"""JobSets and TrainJobs of a test, and their pods."""

from __future__ import annotations

from typing import Any

from tests.cluster.operator import queued
from tests.cluster.operator.pools import Pool

Json = dict[str, Any]


def job_sets_path(pool: Pool) -> str:
    """The JobSets of the namespace."""
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{pool.namespace}/jobsets"


def trainer_path(pool: Pool, plural: str = "trainjobs") -> str:
    """The TrainJobs of the namespace, or other objects of that API."""
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{pool.namespace}/{plural}"


def replicated_job(name: str, pods: int, gpus: int, **more: Any) -> Json:
    """Jobs of a JobSet: that many of one pod each. `pod`: fields of its pods."""
    template = {"spec": queued.pod(gpus, **more.pop("pod", {}))}
    job = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {"name": name, "replicas": pods, "template": {"spec": job}, **more}


def create_job_set(pool: Pool, name: str, *jobs: Json, queue: str = "blue", **spec: Any) -> Json:
    """A suspended JobSet."""
    meta = {"name": name, "labels": {"muster.dev/queue": pool.queue(queue)}}
    wanted = {"suspend": True, "replicatedJobs": list(jobs), **spec}
    return pool.api.create(
        job_sets_path(pool),
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": wanted},
    )


def create_train_job(pool: Pool, name: str, runtime: str, pods: int, queue: str = "blue") -> Json:
    """A suspended TrainJob of this TrainingRuntime."""
    meta = {"name": name, "labels": {"muster.dev/queue": pool.queue(queue)}}
    reference = {"name": runtime, "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
    wanted = {"suspend": True, "runtimeRef": reference, "trainer": {"numNodes": pods}}
    return pool.api.create(
        trainer_path(pool),
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": meta, "spec": wanted},
    )


def create_runtime(pool: Pool, name: str, gpus: int) -> None:
    """A TrainingRuntime whose pods request that many GPUs each."""
    pod = queued.pod(gpus)
    pod["containers"][0]["name"] = "node"
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}}
    pool.api.create(
        trainer_path(pool, "trainingruntimes"),
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "plainml"}},
            "spec": spec,
        },
    )


def pods_of(pool: Pool, job_set: str) -> list[Json]:
    """The pods of the JobSet of this name."""
    return pool.api.items(
        f"/api/v1/namespaces/{pool.namespace}/pods", labelSelector=f"jobset.sigs.k8s.io/jobset-name={job_set}"
    )


def phases_of(pool: Pool, job_set: str) -> set[str]:
    """Phases of the pods of a JobSet."""
    return {str(one["status"]["phase"]) for one in pods_of(pool, job_set)}


def nodes_of(pool: Pool, job_set: str) -> list[str]:
    """Where they are bound; "" for one that is not."""
    return sorted(str(one["spec"].get("nodeName", "")) for one in pods_of(pool, job_set))


def annotate(pool: Pool, pods: list[Json], **does: Any) -> None:
    """Steer running pods."""
    for one in pods:
        path = f"/api/v1/namespaces/{pool.namespace}/pods/{one['metadata']['name']}"
        pool.api.patch(path, {"metadata": {"annotations": queued.does(**does)}})
