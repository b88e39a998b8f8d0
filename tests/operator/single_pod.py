"""Jobs of one pod, and pods that record their job's admission."""

from __future__ import annotations

from typing import Any

from tests.operator.api_server import OperatorHarness, Server
from tests.operator.caches import new_cache, relist
from tests.operator.objects import job_document, pod_seen, read, template

from muster import spec
from muster.cluster import PodView
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawTrainingJob, V1Pod
from muster_operator.cache.admission_signing import (
    AdmissionSigner,
    PodAdmissionRecord,
)
from muster_operator.cache.cluster_cache import ClusterCache

SIGNER = AdmissionSigner(b"k" * 32, "this")
POD = "POST /api/v1/namespaces/team/pods/llama-"
STATUS = "PATCH /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama/status"
ADMISSION = PodAdmissionRecord("uid-llama", 0, "trainer", "n1", "f", 1, 1795255210.25)
ONE_POD = [{"name": "trainer", "replicas": 1, "template": template()}]


def new_harness(api: AsyncKubeClient, jobs: int = 1) -> OperatorHarness:
    """A leader with the key, and a job of one pod."""
    harness = OperatorHarness(api)
    harness.term.signer = SIGNER
    harness.cache.begin_term(SIGNER)
    for number in range(jobs):
        harness.submit("llama" if number == 0 else f"llama-{number}", 5 + number, roles=ONE_POD)
    return harness


def submit_recorded(harness: OperatorHarness, name: str, number: int, at: float) -> None:
    """A job of one pod that only its pod records as admitted, since `at`."""
    harness.submit(name, 5 + number, roles=ONE_POD)
    pod = pod_seen("", 100 + number, node="n1", owner=f"uid-{name}")
    pod.metadata.annotations.admitted = SIGNER.sign(PodAdmissionRecord(f"uid-{name}", 0, "trainer", "n1", "f", 1, at))
    harness.cache.pods.on_upsert(pod)


def pod_with_record(
    admission: PodAdmissionRecord = ADMISSION, signer: AdmissionSigner = SIGNER, version: int = 6, **status: Any
) -> V1Pod:
    """The pod of the job as a watch delivers it."""
    pod = pod_seen("", version, node=admission.node, owner="uid-llama", slot=(0, admission.attempt), **status)
    pod.metadata.annotations.admitted = signer.sign(admission)
    return pod


def single_pod_job(version: int = 5, generation: int = 1, **fields: Any) -> RawTrainingJob:
    """The job as a watch delivers it."""
    document = job_document("llama", version, **{"roles": ONE_POD, **fields})
    document["metadata"]["generation"] = generation
    return read(RawTrainingJob, document)


def status_of(cache: ClusterCache) -> spec.TrainingJobStatus:
    (shown,) = cache.observe().jobs
    return shown.status


def cache_of_new_leader(pod: V1Pod, one: RawTrainingJob) -> ClusterCache:
    """The cache of an operator that has just become leader."""
    cache = new_cache()[0]
    relist(cache.pods, [pod], 7)
    relist(cache.jobs, [one], 7)
    cache.begin_term(AdmissionSigner(SIGNER.key, "next"))
    return cache


def watched_pod(server: Server, pod: PodView, **status: Any) -> V1Pod:
    """The created pod, bound, as a watch delivers it."""
    number = next(n for n, call in enumerate(server.calls) if call.startswith("POST") and call.endswith(pod.name))
    cache = pod_seen(pod.name, server.version + 1, node=pod.node, owner=pod.job_uid, **status)
    cache.metadata.uid = "uid-1001"  # the first write
    cache.metadata.annotations.admitted = server.bodies[number]["metadata"]["annotations"]["muster.dev/admitted"]
    return cache
