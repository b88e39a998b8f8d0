"""Applies objects to a cluster, and deletes them.

All objects are validated by this client and by a server dry run before the first is written or deleted. Kubernetes has
no transactions: an error in between names the objects that were written or deleted before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.validation import (
    apply_warnings,
    being_deleted_conflict,
    check_apply,
    check_edit,
    check_flavor_unused,
    check_no_children,
)
from muster.client import JobList
from muster.cluster_client import queries
from muster.cluster_client.decode import decodes_equal, to_manifest
from muster.cluster_client.nodes import is_not_forbidden, nodes_with_flavors
from muster.cluster_client.submit import preflight_job
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused
from muster.kube.config import DEFAULT_NAMESPACE
from muster.kube.convert import WRONG_VERSION
from muster.kube.requests import DRY_RUN, STRICT_FIELD_VALIDATION, uid_mismatch_as_conflict, uid_precondition
from muster.kube.resources import MUSTER_KINDS
from muster.kube.sync_client import JsonObject, KubeClient
from muster.workload.conditions import is_admitted

if TYPE_CHECKING:
    from muster.api.yaml_input import AnyObject

_MAX_ATTEMPTS = 5
ObjectRef: TypeAlias = tuple[str, str, str]
"""Kind, name, namespace."""


def apply_objects(kube_client: KubeClient, documents: Sequence[AnyObject]) -> list[dict[str, Any]]:
    """Create or change objects: [{kind, namespace, name, result}], queues with `notices` if any.

    Jobs without a namespace are created in that of the kubeconfig's context. Raises the errors of `KubeClient.request`,
    and those of `muster.api.validation` as far as the user may read what it depends on; an error names the objects that
    were written before it.
    """
    notices = _check_apply(kube_client, documents)
    for item in documents:
        _apply_object(kube_client, item, DRY_RUN)
    rows: list[dict[str, Any]] = []
    for item in documents:
        try:
            rows.append(_apply_object(kube_client, item, {}))
        except MusterError as error:
            error.args = (_partial_write_message(error, item, rows),)
            raise
    queue_names = [row["name"] if row["kind"] == "Queue" else "" for row in rows]
    return [
        row | ({"notices": notices[name]} if name in notices else {})
        for row, name in zip(rows, queue_names, strict=True)
    ]


def _check_apply(kube_client: KubeClient, documents: Sequence[AnyObject]) -> dict[str, list[str]]:
    """Validate objects; returns notices by queue."""
    notices: dict[str, list[str]] = {}
    others: list[Queue | Flavor] = [item for item in documents if not isinstance(item, TrainingJob)]
    if others:
        with _ignore_forbidden():
            known: list[Queue | Flavor] = [*queries.list_queues(kube_client), *queries.list_flavors(kube_client)]
            check_apply(others, known)
            notices = apply_warnings(others, known, nodes_with_flavors(kube_client, [*known, *others]))
    for job in documents:
        if isinstance(job, TrainingJob):
            namespace = job.metadata.namespace or kube_client.config.namespace
            with _ignore_undecodable(), contextlib.suppress(NotFound):
                check_edit(queries.get_job(kube_client, job.metadata.name, namespace), job)
            preflight_job(kube_client, job, namespace, others)
    return notices


def _apply_object(kube_client: KubeClient, item: AnyObject, query: Mapping[str, str]) -> dict[str, Any]:
    """Create the object, or replace the spec of the existing one and add labels and annotations. Raises `Conflict` if
    it is being deleted or edited concurrently."""
    desired = to_manifest(item, kube_client.config.namespace)
    meta = desired["metadata"]
    name, namespace = meta["name"], meta.get("namespace")
    path = MUSTER_KINDS[item.kind].path(namespace, name)
    try:
        existing = kube_client.get(path)
    except NotFound:
        kube_client.request(
            "POST", MUSTER_KINDS[item.kind].path(namespace), desired, query={**STRICT_FIELD_VALIDATION, **query}
        )
        return _result_row(item.kind, namespace, name, "created")
    _check_not_terminating(item, existing)
    if decodes_equal(type(item), _merge_spec(existing, desired), existing):
        return _result_row(item.kind, namespace, name, "unchanged")
    _replace_object(kube_client, item, existing, desired, query)
    return _result_row(item.kind, namespace, name, "configured")


def _replace_object(
    kube_client: KubeClient, item: AnyObject, existing: JsonObject, desired: JsonObject, query: Mapping[str, str]
) -> None:
    """Update with the resourceVersion as precondition. On a conflict by a status write of the operator, retry with the
    current object; raise `Conflict` if the spec was edited."""
    path = MUSTER_KINDS[item.kind].path(desired["metadata"].get("namespace"), desired["metadata"]["name"])
    for retries_left in reversed(range(_MAX_ATTEMPTS)):
        try:
            kube_client.request("PUT", path, _merge_spec(existing, desired), query={**STRICT_FIELD_VALIDATION, **query})
        except Conflict:
            current = kube_client.get(path)
            if not retries_left or _is_spec_edited(existing, current):
                raise
            _check_not_terminating(item, current)
            existing = current
            continue
        return


def _check_not_terminating(item: AnyObject, existing: JsonObject) -> None:
    if existing["metadata"].get("deletionTimestamp"):
        raise being_deleted_conflict(item.kind, item.metadata.name)


def _is_spec_edited(before: JsonObject, now: JsonObject) -> bool:
    """Whether the object was recreated or its spec was changed."""
    return before["metadata"].get("uid") != now["metadata"].get("uid") or before.get("spec") != now.get("spec")


@contextlib.contextmanager
def _ignore_forbidden() -> Iterator[None]:
    """Skip a check that depends on objects which the user may not read."""
    try:
        yield
    except Refused as error:
        if is_not_forbidden(error):
            raise


@contextlib.contextmanager
def _ignore_undecodable() -> Iterator[None]:
    """Skip the check of immutable fields if the stored object cannot be decoded, so that it can be repaired."""
    try:
        yield
    except ClusterError as error:
        if error.reason != WRONG_VERSION:
            raise


def _partial_write_message(error: MusterError, item: AnyObject, rows: Sequence[dict[str, Any]]) -> str:
    """The error with the objects that were written before it."""
    before = [object_label(row) for row in rows if row["result"] != "unchanged"]
    message = f"{error}; written before that: {', '.join(before)}" if before else str(error)
    if isinstance(error, ClusterError):
        this = object_label(
            _result_row(item.kind, item.metadata.namespace or DEFAULT_NAMESPACE, item.metadata.name, "")
        )
        return f"{message}; it is unknown whether {this} was written: apply it again"
    return message


def _merge_spec(existing: JsonObject, desired: JsonObject) -> JsonObject:
    return {**existing, "spec": desired["spec"], "metadata": _merge_metadata(existing["metadata"], desired["metadata"])}


def _merge_metadata(existing: JsonObject, desired: JsonObject) -> JsonObject:
    both = {name: {**existing.get(name, {}), **desired.get(name, {})} for name in ("labels", "annotations")}
    return {**existing, **{name: value for name, value in both.items() if value}}


def _result_row(kind: str, namespace: str | None, name: str, result: str) -> dict[str, Any]:
    return {"kind": kind, "namespace": namespace if kind == "TrainingJob" else None, "name": name, "result": result}


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
            rows.append(_deleted_row(target, _delete(kube_client, target, body=uid_precondition(uid))))
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
        with uid_mismatch_as_conflict(object_label(_deleted_row(target, {}))):
            return kube_client.request("DELETE", MUSTER_KINDS[kind].path(namespace, name), body, query=query)
    except NotFound as error:
        if kind == "TrainingJob":
            raise queries.job_not_found(kube_client, name, namespace) from error
        raise NotFound(f"{kind.lower()} {name!r} does not exist") from error


def _deleted_uid(answer: JsonObject) -> str:
    """The uid in the answer to a DELETE, which is the object if it has finalizers, else a Status."""
    return str(answer.get("metadata", {}).get("uid") or answer["details"]["uid"])


def _deleted_row(target: ObjectRef, answer: JsonObject) -> dict[str, Any]:
    kind, name, namespace = target
    deleting = answer.get("kind") == kind and answer["metadata"].get("finalizers")
    return _result_row(kind, namespace, name, "deleting" if deleting else "deleted")


def object_label(row: dict[str, Any]) -> str:
    """The object of a row as text, such as `queue research`."""
    return (
        f"{row['kind'].lower()} {row['namespace']}/{row['name']}"
        if row["namespace"]
        else f"{row['kind'].lower()} {row['name']}"
    )
