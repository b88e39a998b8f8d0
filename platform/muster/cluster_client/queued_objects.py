"""Objects of other kinds that queue: what their users ask of them, by annotations that the operator reads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from muster.api.spec import WorkloadRecord, WorkloadReference
from muster.cluster_client.queries import list_objects, list_queues
from muster.errors import Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.kinds.suspended.read import value_at
from muster.kinds.suspended.table import (
    CANCEL_ANNOTATION,
    NAMESPACE_LABEL,
    QUEUE_LABEL,
    SUSPEND_ANNOTATION,
    SUSPEND_PATH,
)
from muster.kube.requests import DRY_RUN, MERGE_PATCH, STRICT_FIELD_VALIDATION
from muster.kube.resources import NAMESPACES, Resource
from muster.kube.sync_client import JsonObject, KubeClient
from muster.text import did_you_mean
from muster.usage.segments import USER_LABEL, label_of_user
from muster.workload.conditions import has_terminated

CANCEL: Mapping[str, str | None] = {CANCEL_ANNOTATION: "true"}
SUSPEND: Mapping[str, str | None] = {SUSPEND_ANNOTATION: "true"}
RESUME: Mapping[str, str | None] = {SUSPEND_ANNOTATION: None}


def find_object(kube_client: KubeClient, name: str, namespace: str) -> WorkloadRecord | None:
    """The Workload of the object of this name, None if there is none. Raises `Conflict` Ambiguous if objects of several
    kinds have it."""
    found = [one for one in list_objects(kube_client, namespace) if one.spec.object_ref.name == name]
    if len(found) > 1:
        kinds = " and ".join(sorted(one.spec.object_ref.kind for one in found))
        raise Conflict(
            f"{kinds} are all named {namespace}/{name}: annotate one of them with kubectl instead", reason="Ambiguous"
        )
    return found[0] if found else None


def annotate_object(kube_client: KubeClient, record: WorkloadRecord, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of its object; None removes one. Raises `Conflict` JobFinished if it has ended, or another object
    has its name by now."""
    reference, namespace = record.spec.object_ref, record.metadata.namespace or "default"
    if has_terminated(record.status):
        label = f"{reference.kind.lower()} {namespace}/{reference.name}"
        raise Conflict(f"{label} has already ended: {record.status.phase}", reason="JobFinished")
    path = resource_of(kube_client, reference).path(namespace, reference.name)
    patch = {"metadata": {"uid": reference.uid, "annotations": dict(annotations)}}
    kube_client.request("PATCH", path, patch, content_type=MERGE_PATCH)


def resource_of(kube_client: KubeClient, reference: WorkloadReference) -> Resource:
    """The resource of an object, as the API server names it. Raises `NotFound` where its CRD is not installed."""
    group, _, version = reference.api_version.rpartition("/")
    listed = kube_client.get(f"/apis/{reference.api_version}" if group else f"/api/{version}")
    for one in listed.get("resources", ()):
        if one.get("kind") == reference.kind and "/" not in one["name"]:
            return Resource(group, version, one["name"], reference.kind, bool(one.get("namespaced")))
    raise NotFound(f"{reference.api_version} has no kind {reference.kind}")


def submit_objects(kube_client: KubeClient, documents: Sequence[JsonObject], *, dry_run: bool) -> list[JsonObject]:
    """Create objects of other kinds, suspended, all or none; as the API server has them. Raises `InvalidSpec`
    NamespaceNotEnabled and `NotFound` QueueNotFound where they would not queue, as far as the user may read that."""
    prepared = [_prepared(kube_client, one) for one in documents]
    for _, one in prepared:
        _check_queued(kube_client, one)
    query = {**STRICT_FIELD_VALIDATION, **DRY_RUN}
    checked = [kube_client.request("POST", path, one, query=query) for path, one in prepared]
    if dry_run:
        return checked
    created: list[tuple[str, JsonObject]] = []
    try:
        for path, one in prepared:
            created.append((path, kube_client.request("POST", path, one, query=STRICT_FIELD_VALIDATION)))
    except MusterError:
        for path, one in created:
            with contextlib.suppress(MusterError):  # the refusal of the other object is reported
                kube_client.request("DELETE", f"{path}/{one['metadata']['name']}")
        raise
    return [one for _, one in created]


def _prepared(kube_client: KubeClient, document: JsonObject) -> tuple[str, JsonObject]:
    """Where it is created, and what: suspended, with its namespace, and with the label of its user."""
    meta = document["metadata"]
    namespace = meta.get("namespace") or kube_client.config.namespace
    reference = WorkloadReference(api_version=document["apiVersion"], kind=document["kind"], name=meta["name"], uid="")
    resource = resource_of(kube_client, reference)
    labels = dict(meta["labels"])
    with contextlib.suppress(MusterError):  # the user is not known
        labels.setdefault(USER_LABEL, label_of_user(kube_client.username()))
    labels = {name: value for name, value in labels.items() if value}
    held = _merged(document, value_at(SUSPEND_PATH, True))
    return resource.path(namespace), {**held, "metadata": {**meta, "namespace": namespace, "labels": labels}}


def _check_queued(kube_client: KubeClient, document: JsonObject) -> None:
    meta = document["metadata"]
    namespace, queue = meta["namespace"], meta["labels"][QUEUE_LABEL]
    with contextlib.suppress(Refused):
        found = kube_client.get(NAMESPACES.path(None, namespace))["metadata"].get("labels") or {}
        if found.get(NAMESPACE_LABEL) != "enabled":
            command = f"kubectl label namespace {namespace} {NAMESPACE_LABEL}=enabled"
            raise InvalidSpec(
                f"objects of namespace {namespace} do not queue; to enable it: {command}", reason="NamespaceNotEnabled"
            )
    with contextlib.suppress(Refused):
        names = [one.metadata.name for one in list_queues(kube_client)]
        if queue not in names:
            hint = did_you_mean(queue, names, f"existing queues: {', '.join(names[:8])}")
            raise NotFound(f"queue {queue!r} does not exist; {hint}", reason="QueueNotFound")


def _merged(document: JsonObject, other: Mapping[str, Any]) -> JsonObject:
    found = dict(document)
    for name, value in other.items():
        inner = found.get(name)
        found[name] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return found
