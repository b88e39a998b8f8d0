"""Event manifests of jobs, queues and flavors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from muster.api import spec
from muster.cluster import RecordEvent
from muster.kube.resources import EVENTS, TRAINING_JOBS, Resource

CONTROLLER = "muster.dev/operator"
CYCLE_ANNOTATION = "muster.dev/cycle"
_MAX_NOTE_BYTES = 1024  # limit of the API server


def event_manifest(
    meta: spec.ObjectMeta,
    event: RecordEvent,
    at: float,
    instance: str,
    resource: Resource = TRAINING_JOBS,
    cycle: str | None = None,
) -> dict[str, Any]:
    """Manifest of the Event; `instance` names the reporting operator, `cycle` the scheduling cycle. The API server
    completes its name. Events of cluster-scoped objects are in `default`."""
    annotations = {} if cycle is None else {"annotations": {CYCLE_ANNOTATION: cycle}}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{meta.name}-", "namespace": meta.namespace or "default", **annotations},
        "eventTime": datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": event.reason,
        "reason": event.reason,
        "type": event.type,
        "note": event.message.encode()[:_MAX_NOTE_BYTES].decode(errors="ignore"),
        "regarding": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            **({"namespace": meta.namespace} if meta.namespace else {}),
        },
    }
