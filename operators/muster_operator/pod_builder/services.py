"""The headless Service of a job with more than one pod: a DNS name for pod 0 of each role, the rendezvous host.

It selects pod 0 only: with all pods, the endpoints would be rewritten in full again and again while a large gang
starts. Addresses are published before pods are ready, because ranks may have to meet in order to become ready.
"""

from __future__ import annotations

from typing import Any

from muster.api import spec
from muster_operator import labels
from muster_operator.pod_builder.names import service_name
from muster_operator.pod_builder.owner_references import owner_reference


def needs_service(job: spec.TrainingJob) -> bool:
    """Whether the job may have more than one pod."""
    return sum(role.replicas for role in job.spec.roles) > 1


def service_manifest(job: spec.TrainingJob) -> dict[str, Any]:
    """Manifest of the Service."""
    meta = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {labels.JOB: meta.name},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.JOB_UID: meta.uid, labels.INDEX: "0"},
        },
    }
