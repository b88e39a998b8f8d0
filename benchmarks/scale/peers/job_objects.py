"""The same jobs as each scheduler has them: the objects that a user, or a controller before it, would create."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from benchmarks.scale.client import Request
from benchmarks.scale.work import JOB, NAMESPACE, Jobs, Json

Document = tuple[str, Json]  # a collection's path and the object to create in it
Form = Callable[[Jobs, str], list[Document]]
"""One of the jobs, by name: a gang's group stands first."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BATCH_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
JOB_SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
NATIVE_GROUPS = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{NAMESPACE}/podgroups"
VOLCANO_GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups"
KAI_GROUPS = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{NAMESPACE}/podgroups"
QUEUE = "all"


def requests(form: Form, jobs: Jobs) -> Iterator[Request]:
    """What is sent to create the jobs. Pods are sent once their group is there, and before the next group."""
    for name in jobs.names():
        documents = form(jobs, name)
        if documents[0][0] == PODS:
            yield from map(_request, documents)
        else:
            first, *rest = map(_request, documents)
            yield Request(first.path, first.body, tuple(rest))


def alone(jobs: Jobs, name: str) -> list[Document]:
    """Pods and nothing else."""
    return _pods(jobs, name, {})


def native(jobs: Jobs, name: str) -> list[Document]:
    """A PodGroup of Kubernetes itself (1.36, alpha), and its pods."""
    policy = {"gang": {"minCount": jobs.pods}}
    group = _group("scheduling.k8s.io/v1alpha2", name, {"schedulingPolicy": policy})
    return [(NATIVE_GROUPS, group), *_pods(jobs, name, {"schedulingGroup": {"podGroupName": name}})]


def volcano(jobs: Jobs, name: str) -> list[Document]:
    """Volcano's PodGroup in its default queue, and its pods."""
    wanted = {"minMember": jobs.pods, "queue": "default", "minResources": jobs.resources(jobs.pods)}
    group = _group("scheduling.volcano.sh/v1beta1", name, wanted)
    notes = {"scheduling.k8s.io/group-name": name}
    return [(VOLCANO_GROUPS, group), *_pods(jobs, name, {"schedulerName": "volcano"}, annotations=notes)]


def kai(jobs: Jobs, name: str) -> list[Document]:
    """KAI's PodGroup, which its pod grouper would make, and its pods."""
    group = _group("scheduling.run.ai/v2alpha2", name, {"minMember": jobs.pods, "queue": QUEUE})
    more = {"schedulerName": "kai-scheduler"}
    labels, notes = {"kai.scheduler/queue": QUEUE}, {"pod-group-name": name}
    return [(KAI_GROUPS, group), *_pods(jobs, name, more, labels=labels, annotations=notes)]


def batch(jobs: Jobs, name: str) -> list[Document]:
    """A batch/v1 Job; kube-controller-manager makes its pods."""
    return _batch_job(jobs, name, suspend=False, labels={})


def kueue(jobs: Jobs, name: str) -> list[Document]:
    """The same Job suspended, in a queue of Kueue."""
    return _batch_job(jobs, name, suspend=True, labels={"kueue.x-k8s.io/queue-name": QUEUE})


def kueue_job_set(jobs: Jobs, name: str) -> list[Document]:
    """A JobSet of one Job, suspended, in a queue of Kueue."""
    return _job_set(jobs, name, {"kueue.x-k8s.io/queue-name": QUEUE})


def muster(jobs: Jobs, name: str) -> list[Document]:
    """The same Job suspended, in a queue of Muster."""
    return _batch_job(jobs, name, suspend=True, labels={"muster.dev/queue": jobs.queue})


def muster_job_set(jobs: Jobs, name: str) -> list[Document]:
    """The same JobSet, in a queue of Muster."""
    return _job_set(jobs, name, {"muster.dev/queue": jobs.queue})


def _job_set(jobs: Jobs, name: str, labels: Json) -> list[Document]:
    ((_, job),) = _batch_job(jobs, name, suspend=False, labels={})
    job["spec"].pop("suspend")
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    wanted = {"suspend": True, "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job["spec"]}}]}
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": wanted}
    return [(JOB_SETS, document)]


def _batch_job(jobs: Jobs, name: str, *, suspend: bool, labels: Json) -> list[Document]:
    template = {"metadata": {"labels": {JOB: name}}, "spec": _pod_spec(jobs)}
    counts = {"parallelism": jobs.pods, "completions": jobs.pods, "backoffLimit": 0}
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    wanted = {**counts, "suspend": suspend, "template": template}
    return [(BATCH_JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": wanted})]


def _group(version: str, name: str, spec: Json) -> Json:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": spec}


def _pods(
    jobs: Jobs, name: str, more: Json, *, labels: Json | None = None, annotations: Json | None = None
) -> list[Document]:
    meta = {"namespace": NAMESPACE, "labels": {JOB: name, **(labels or {})}, "annotations": annotations or {}}
    spec = _pod_spec(jobs) | more
    return [
        (PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": f"{name}-{index}"}, "spec": spec})
        for index in range(jobs.pods)
    ]


def _pod_spec(jobs: Jobs) -> Json:
    """As Muster's pods are made: no retries by the kubelet, no token."""
    return jobs.pod_spec() | {"restartPolicy": "Never", "automountServiceAccountToken": False}


def _request(document: Sequence[object]) -> Request:
    path, body = document
    return Request(str(path), msgspec.json.encode(body))
