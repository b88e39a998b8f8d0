"""The objects of a job beside its pods: their names and labels, its Service and its PodGroups.

All of them have the job as owner, so they are deleted with it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from muster.api import spec
from muster.api.spec import JOB_LABEL
from muster.kinds.trainingjob.arrays import array_name, index_of, split_index_key
from muster.kube.resources import TRAINING_JOBS
from muster.workload.placement import pod_count

INDEX_LABEL = "muster.dev/index"
ATTEMPT_LABEL = "muster.dev/attempt"
QUEUE_ANNOTATION = "muster.dev/queue"
SIGNATURE_ANNOTATION = "muster.dev/signature"
JOB_UID_LABEL = "muster.dev/job-uid"  # unlike names never reused: what a Service selects by
RENDEZVOUS_PORT = 29500
_HOST_PORTS = (20_000, 30_000)  # below the default ranges of node ports and ephemeral ports


def service_name(job: str, uid: str) -> str:
    """Name of the headless Service of a job; differs from that of a deleted job of the same name."""
    digest = hashlib.sha256(uid.encode()).hexdigest()[:5]
    return f"{'' if job[:1].isalpha() else 'j'}{job}-{digest}"


def host_name(role: str, index: int, array_index: int | None = None) -> str:
    """Host name of a pod; the same in every attempt. All indices of an array have one Service."""
    return f"{role}-{index}" if array_index is None else f"{role}-{index}-{array_index}"


def job_service_name(job: spec.TrainingJob) -> str:
    """Name of the Service of a job, or of the array that it is an index of."""
    return service_name(array_name(job), split_index_key(job.metadata.uid)[0])


def rendezvous_port(uid: str, role: str, attempt: int, *, on_host_network: bool) -> int:
    """Rendezvous port of a role's pod 0. On the host network, which pods share, it differs in every attempt."""
    if not on_host_network:
        return RENDEZVOUS_PORT
    return port_by_hash(f"{uid}/{role}/{attempt}", _HOST_PORTS)


def port_by_hash(text: str, ports: tuple[int, int]) -> int:
    """A port of the range (first, end) that is always the same for the same text."""
    first, end = ports
    digest = hashlib.sha256(text.encode()).digest()
    return first + int.from_bytes(digest[:4], "big") % (end - first)


def owned_metadata(job: spec.TrainingJob, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Metadata of an object that is deleted with the job."""
    owner = {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": array_name(job),
        "uid": split_index_key(job.metadata.uid)[0],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "namespace": job.metadata.namespace, "labels": labels, "ownerReferences": [owner]}


def needs_service(job: spec.TrainingJob) -> bool:
    """Whether the job may have more than one pod."""
    return sum(role.replicas for role in job.spec.roles) > 1


def service_manifest(job: spec.TrainingJob) -> dict[str, Any]:
    """Manifest of the headless Service of a job with more than one pod: a DNS name for pod 0 of each role, the
    rendezvous host.

    It selects pod 0 only: with all pods, the endpoints would be rewritten in full again and again while a large gang
    starts. Addresses are published before pods are ready, because ranks may have to meet in order to become ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, job_service_name(job), {JOB_LABEL: array_name(job)}),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_UID_LABEL: split_index_key(job.metadata.uid)[0], INDEX_LABEL: "0"},
        },
    }


def pod_group_name(job: str, uid: str, attempt: int) -> str:
    """Name of an attempt's PodGroup; the suffix is that of the attempt's pods."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job}-{digest}"


def pod_group_manifest(job: spec.TrainingJob) -> dict[str, Any] | None:
    """Manifest of the PodGroup of the job's present attempt, without its apiVersion and kind, for clusters whose
    kube-scheduler supports gang scheduling; None for a single pod, which needs none, and for an index of an array, of
    which there may be thousands.

    One per attempt: in Kubernetes 1.36 a PodGroup is immutable, and an elastic gang may restart with another number of
    pods.
    """
    meta, attempt, pods = job.metadata, job.status.attempt, pod_count(job.status.placement)
    if pods <= 1 or index_of(job) is not None:
        return None
    labels = {JOB_LABEL: meta.name, JOB_UID_LABEL: meta.uid, ATTEMPT_LABEL: str(attempt)}
    return {
        "metadata": owned_metadata(job, pod_group_name(meta.name, meta.uid, attempt), labels),
        "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
    }
