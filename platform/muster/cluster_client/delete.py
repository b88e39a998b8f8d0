"""Deletes objects of a cluster. All are validated, also by a server dry run, before the first is deleted.

Kubernetes has no transactions: an error in between names the objects that were deleted before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from muster.api.validation import check_flavor_unused, check_no_children
from muster.client import JobList
from muster.cluster_client import queries
from muster.cluster_client.nodes import is_not_forbidden
from muster.errors import InvalidSpec, MusterError, NotFound, Refused
from muster.kube.requests import DRY_RUN, uid_mismatch_as_conflict, uid_precondition
from muster.kube.resources import MUSTER_KINDS
from muster.kube.sync_client import JsonObject, KubeClient
from muster.lifecycle import is_admitted

ObjectRef: TypeAlias = tuple[str, str, str]
"""Kind, name, namespace."""


def delete_objects(kube_client: KubeClient, targets: Sequence[ObjectRef]) -> list[dict[str, Any]]:
    """Delete objects in this order: [{kind, namespace, name, result}]. Raises `NotFound` naming all that do not exist,
    `Conflict` HasChildren and FlavorInUse as far as the user may read, `InvalidSpec` for an unknown kind."""
    for kind, _, _ in targets:
        if kind not in MUSTER_KINDS:
            raise InvalidSpec(f"kind: must be TrainingJob, Queue or Flavor; got {kind!r}", field="kind")
    checked = _dry_run_deletes(kube_client, targets)
    rows: list[dict[str, Any]] = []
    for target, uid in zip(targets, checked, strict=True):
        try:
            rows.append(_result_row(target, _delete(kube_client, target, body=uid_precondition(uid))))
        except MusterError as error:
            if rows:
                error.args = (f"{error}; deleted before that: {', '.join(object_label(row) for row in rows)}",)
            raise
    return rows


def _dry_run_deletes(kube_client: KubeClient, targets: Sequence[ObjectRef]) -> list[str]:
    """The uids of the objects that were validated: an object recreated with the same name must not be deleted."""
    suffix = "; nothing was deleted" if len(targets) > 1 else ""
    uids: list[str] = []
    missing: list[str] = []
    try:
        for target in targets:
            try:
                uids.append(_deleted_uid(_delete(kube_client, target, query=DRY_RUN)))
            except NotFound as error:
                missing.append(str(error))
        if missing:
            raise NotFound("; ".join(missing))
        _check_not_in_use(kube_client, targets)
    except MusterError as error:
        error.args = (f"{error}{suffix}",)
        raise
    return uids


def _check_not_in_use(kube_client: KubeClient, targets: Sequence[ObjectRef]) -> None:
    """Refuse a queue with remaining children and a flavor in use by jobs; skipped if the user may not read them."""
    try:
        for number, (kind, name, _) in enumerate(targets):
            if kind == "Queue":
                deleted = {one for other_kind, one, _ in targets[:number] if other_kind == "Queue"}
                kept = [queue for queue in queries.list_queues(kube_client) if queue.metadata.name not in deleted]
                check_no_children(name, kept)
            elif kind == "Flavor":
                check_flavor_unused(name, _jobs_on_flavor(queries.list_jobs(kube_client, None), name))
    except Refused as error:
        if is_not_forbidden(error):
            raise


def _jobs_on_flavor(listing: JobList, flavor: str) -> list[str]:
    """Jobs with pods on a flavor's nodes, including all undecodable jobs that name it."""
    jobs = (job for job in listing.jobs if is_admitted(job.status))
    users = [job.metadata for job in jobs if any(part.flavor == flavor for part in job.status.placement)]
    unreadable = [one.name for one in listing.unreadable if flavor in one.flavors]
    return [*(f"{meta.namespace}/{meta.name}" for meta in users), *unreadable]


def _delete(
    kube_client: KubeClient, target: ObjectRef, *, query: JsonObject | None = None, body: JsonObject | None = None
) -> JsonObject:
    kind, name, namespace = target
    try:
        with uid_mismatch_as_conflict(object_label(_result_row(target, {}))):
            return kube_client.request("DELETE", MUSTER_KINDS[kind].path(namespace, name), body, query=query)
    except NotFound as error:
        if kind == "TrainingJob":
            raise queries.job_not_found(kube_client, name, namespace) from error
        raise NotFound(f"{kind.lower()} {name!r} does not exist") from error


def _deleted_uid(answer: JsonObject) -> str:
    """The uid in the answer to a DELETE, which is the object if it has finalizers, else a Status."""
    return str(answer.get("metadata", {}).get("uid") or answer["details"]["uid"])


def _result_row(target: ObjectRef, answer: JsonObject) -> dict[str, Any]:
    kind, name, namespace = target
    deleting = answer.get("kind") == kind and answer["metadata"].get("finalizers")
    space = namespace if kind == "TrainingJob" else None
    return {"kind": kind, "namespace": space, "name": name, "result": "deleting" if deleting else "deleted"}


def object_label(row: dict[str, Any]) -> str:
    """The object of a row as text, such as `queue research`."""
    return (
        f"{row['kind'].lower()} {row['namespace']}/{row['name']}"
        if row["namespace"]
        else f"{row['kind'].lower()} {row['name']}"
    )
