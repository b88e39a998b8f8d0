"""Events: what happened to a job, for whoever runs `kubectl describe` or `kubectl get events`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from muster import spec
from muster.cluster import RecordEvent
from muster_operator.kube.resources import EVENTS, TRAINING_JOBS

CONTROLLER = "muster.dev/operator"
_LONGEST_NOTE = 1024  # the API server's bound


def event_manifest(job: spec.TrainingJob, event: RecordEvent, at: float, instance: str) -> dict[str, Any]:
    """The Event as it is to be created; `instance` is which operator says so. The API server ends its name."""
    meta = job.metadata
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{meta.name}-", "namespace": meta.namespace},
        "eventTime": datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": event.reason,
        "reason": event.reason,
        "type": event.type,
        "note": event.message.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
        "regarding": {
            "apiVersion": TRAINING_JOBS.api_version,
            "kind": TRAINING_JOBS.kind,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
    }
