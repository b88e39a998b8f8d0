"""The PodGroup of a gang, for clusters whose kube-scheduler binds gangs whole or not at all.

One for each attempt: a PodGroup never changes, and an elastic gang may come back with another number of pods.
"""

from __future__ import annotations

import hashlib
from typing import Any

from muster import spec
from muster.lifecycle.placement import pod_count
from muster_operator import labels
from muster_operator.kube.resources import POD_GROUPS
from muster_operator.pod_builder.owner_references import owner_reference


def pod_group_name(job: str, uid: str, attempt: int) -> str:
    """The PodGroup of one attempt; it ends as the names of the attempt's pods do."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job}-{digest}"


def pod_group_manifest(job: spec.TrainingJob) -> dict[str, Any] | None:
    """The PodGroup of the job's attempt at hand, as it is to be created; None for a single pod, which needs none."""
    meta, attempt, pods = job.metadata, job.status.attempt, pod_count(job.status.placement)
    if pods <= 1:
        return None
    return {
        "apiVersion": POD_GROUPS.api_version,
        "kind": POD_GROUPS.kind,
        "metadata": {
            "name": pod_group_name(meta.name, meta.uid, attempt),
            "namespace": meta.namespace,
            "labels": {labels.JOB: meta.name, labels.JOB_UID: meta.uid, labels.ATTEMPT: str(attempt)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
    }
