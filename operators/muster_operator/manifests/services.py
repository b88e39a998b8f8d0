"""The headless Service of a job with more than one pod: it gives every pod a name that its peers can look up.

Addresses are published before pods are ready, or ranks that wait for each other in order to get ready would wait for
ever.
"""

from __future__ import annotations

from typing import Any

from muster import spec
from muster_operator import labels
from muster_operator.manifests.names import service_name
from muster_operator.manifests.pods import owner


def needs_service(job: spec.TrainingJob) -> bool:
    """Whether the job may have more than one pod."""
    return sum(role.replicas for role in job.spec.roles) > 1


def service_manifest(job: spec.TrainingJob) -> dict[str, Any]:
    """The Service as it is to be created."""
    meta = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {labels.JOB: meta.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.JOB_UID: meta.uid},
        },
    }
