"""Deletes objects of a cluster: all are checked, by us and by the server, before the first one is deleted.

A cluster has no transaction over several objects: what fails midway says what was deleted before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from muster.admission import check_flavor_unused, check_no_children
from muster.errors import InvalidSpec, MusterError, NotFound, Refused
from muster.kubernetes import overview, paths
from muster.kubernetes.connection import DRY_RUN, Connection, Json
from muster.kubernetes.identity import only, staying_with
from muster.lifecycle import is_admitted
from muster.listing import Listing

Target: TypeAlias = tuple[str, str, str]
"""Kind, name, namespace."""


def delete_all(connection: Connection, targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Delete objects in this order: [{kind, namespace, name, result}]. Raises `NotFound` of every one that is not
    there, `Conflict` HasChildren and FlavorInUse as far as that may be read, `InvalidSpec` for an unknown kind."""
    for kind, _, _ in targets:
        if kind not in paths.PLURALS:
            raise InvalidSpec(f"kind {kind!r} is not known; write TrainingJob, Queue or Flavor", field="kind")
    checked = _check(connection, targets)
    rows: list[dict[str, Any]] = []
    for target, uid in zip(targets, checked, strict=True):
        try:
            rows.append(_row(target, _delete(connection, target, body=only(uid))))
        except MusterError as error:
            if rows:
                error.args = (f"{error}; deleted before that: {', '.join(named(row) for row in rows)}",)
            raise
    return rows


def _check(connection: Connection, targets: Sequence[Target]) -> list[str]:
    """The uids of what may be deleted: what gets a name of theirs later was not checked."""
    nothing = "; nothing was deleted" if len(targets) > 1 else ""
    uids: list[str] = []
    missing: list[str] = []
    try:
        for target in targets:
            try:
                uids.append(_uid(_delete(connection, target, query=DRY_RUN)))
            except NotFound as error:
                missing.append(str(error))
        if missing:
            raise NotFound("; ".join(missing))
        _check_users(connection, targets)
    except MusterError as error:
        error.args = (f"{error}{nothing}",)
        raise
    return uids


def _check_users(connection: Connection, targets: Sequence[Target]) -> None:
    """No queue goes before those below it, no flavor under a job; what may not be read is not checked."""
    try:
        for number, (kind, name, _) in enumerate(targets):
            if kind == "Queue":
                before = {one for sort, one, _ in targets[:number] if sort == "Queue"}
                staying = [queue for queue in overview.queues(connection) if queue.metadata.name not in before]
                check_no_children(name, staying)
            elif kind == "Flavor":
                check_flavor_unused(name, _users(overview.listing(connection, None), name))
    except Refused as error:
        if overview.allowed(error):
            raise


def _users(listing: Listing, flavor: str) -> list[str]:
    """Jobs that have pods on a flavor's nodes; those that cannot be read may have ended."""
    jobs = (job for job in listing.jobs if is_admitted(job.status))
    users = [job.metadata for job in jobs if any(part.flavor == flavor for part in job.status.placement)]
    odd = [one.name for one in listing.unreadable if flavor in one.flavors]
    return [*(f"{meta.namespace}/{meta.name}" for meta in users), *odd]


def _delete(connection: Connection, target: Target, *, query: Json | None = None, body: Json | None = None) -> Json:
    kind, name, namespace = target
    try:
        with staying_with(named(_row(target, {}))):
            return connection.request("DELETE", paths.one(kind, name, namespace), body, query=query)
    except NotFound as error:
        if kind == "TrainingJob":
            raise overview.no_job(connection, name, namespace) from error
        raise NotFound(f"there is no {kind.lower()} {name!r}") from error


def _uid(answer: Json) -> str:
    """Of the object that the server deletes: it answers with the object where it has finalizers, else with a Status."""
    return str(answer.get("metadata", {}).get("uid") or answer["details"]["uid"])


def _row(target: Target, answer: Json) -> dict[str, Any]:
    kind, name, namespace = target
    leaving = answer.get("kind") == kind and answer["metadata"].get("finalizers")
    space = namespace if kind == "TrainingJob" else None
    return {"kind": kind, "namespace": space, "name": name, "result": "deleting" if leaving else "deleted"}


def named(row: dict[str, Any]) -> str:
    """The object of a row, for a person."""
    return (
        f"{row['kind'].lower()} {row['namespace']}/{row['name']}"
        if row["namespace"]
        else f"{row['kind'].lower()} {row['name']}"
    )
