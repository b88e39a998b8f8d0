"""Whose an object is: what belongs to a job goes with it."""

from __future__ import annotations

from typing import Any

from muster import spec
from muster_operator.kube.resources import TRAINING_JOBS


def owner_reference(job: spec.TrainingJob) -> dict[str, Any]:
    """The reference to the job."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
