"""Owner references: objects of a job are deleted with it."""

from __future__ import annotations

from typing import Any

from muster.api import spec
from muster.kube.resources import TRAINING_JOBS


def owner_reference(job: spec.TrainingJob) -> dict[str, Any]:
    """Reference to the job."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
