"""PodGroup manifests, for clusters whose kube-scheduler supports gang scheduling.

One per attempt: a PodGroup is immutable, and an elastic gang may restart with another number of pods.
"""

from __future__ import annotations

import hashlib
from typing import Any

from muster.api import spec
from muster.kube.resources import POD_GROUPS
from muster.lifecycle.placement import pod_count
from muster_operator import labels
from muster_operator.pod_builder.owner_references import owner_reference


def pod_group_name(job: str, uid: str, attempt: int) -> str:
    """Name of an attempt's PodGroup; the suffix is that of the attempt's pods."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job}-{digest}"


def pod_group_manifest(job: spec.TrainingJob) -> dict[str, Any] | None:
    """Manifest of the PodGroup of the job's present attempt; None for a single pod, which needs none."""
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
