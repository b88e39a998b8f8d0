"""The headless Service of a job with more than one pod: it gives pod 0 of each role, where its ranks meet, a name that
its peers can look up.

Only pod 0: with all of a gang's pods in it the addresses are written anew again and again while pods start, each time
all that there are so far. Addresses are published before pods are ready, or ranks that wait for each other in order to
get ready would wait for ever.
"""

from __future__ import annotations

from typing import Any

from muster import spec
from muster_operator import labels
from muster_operator.pod_builder.names import service_name
from muster_operator.pod_builder.owner_references import owner_reference


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
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.JOB_UID: meta.uid, labels.INDEX: "0"},
        },
    }
